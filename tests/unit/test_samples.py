"""`tba samples`: the right responses of a log, with what became of them, and no more of the log read than is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tba.buffer import browse
from tba.buffer.draws import DrawLog
from tba.buffer.log import RolloutLog
from tba.cli import main
from tba.config.settings import Config
from tba.learn.epochs import Epochs
from tba.runs.run_config import write_run_config
from tba.samples.find import Found, find
from tba.samples.query import Query
from tba.testing import make_group
from tba.types import About, Group, PromptRow, Steps, TbaError, Version

DATA = Path(__file__).parents[1] / "data" / "run-0.1.0"


def group(serial: int, prompt: str, rewards: Sequence[float], version: Version | int = 0, texts: str = "") -> Group:
    """Responses are `r SERIAL.PLACE`, unless they are given, a letter for each."""
    made = make_group([1], [[3, 4]] * len(rewards), rewards, prompt_id=prompt, serial=serial, version=version)
    said = list(texts) or [f"r {serial}.{place}" for place in range(len(rewards))]
    trajectories = (
        replace(t, response=replace(t.response, text=text)) for t, text in zip(made.trajectories, said, strict=True)
    )
    named = replace(made.prompt, text=f"What is {prompt}?")
    return replace(made, prompt=named, trajectories=tuple(trajectories), about=About(("right",)))


class Recorded:
    """A run in a folder, merge by merge."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.log = RolloutLog(run / "rollouts", lambda name: PromptRow(json.dumps({"answer": name}), None))
        self.draws = DrawLog(run)
        self.num = 0

    def merge(self, *groups: tuple[str, Sequence[float]], at: int = 0, version: Version | int = 0) -> None:
        first = self.num + 1
        made = [group(first + i, prompt, rewards, version) for i, (prompt, rewards) in enumerate(groups)]
        self.log.append(made, Version(0, at))
        self.num += len(groups)

    def find(self, **query: Any) -> Found:
        return find(self.run, self.run / "rollouts", Query(**query))

    def texts(self, **query: Any) -> list[str]:
        return [s.sample.response for s in self.find(**query).samples]


@pytest.fixture
def run(tmp_path: Path) -> Recorded:
    """Rows 0 to 3, 4 to 7, 8 and 9; the first merge is joined."""
    recorded = Recorded(tmp_path)
    recorded.merge(("a", [0.0, 0.5]), ("b", [1.0, 0.25]))
    recorded.log.compact()
    recorded.merge(("a", [0.75, 0.0]), ("c", [1.0, 1.0]), at=2, version=1)
    recorded.merge(("a", [0.9, 0.8]), at=4, version=4)
    for step, rows in enumerate([[0, 1], [2, 2], [4, 9], [9, 0]], 1):
        recorded.draws.append(step, [rows])
    return recorded


def test_the_newest_are_one_of_each_group_whatever_its_reward(run: Recorded) -> None:
    assert run.texts() == ["r 5.0", "r 4.0", "r 3.0", "r 2.0"]
    assert run.texts(num=2) == ["r 5.0", "r 4.0"]
    assert run.texts(num=99) == [f"r {serial}.0" for serial in (5, 4, 3, 2, 1)]


def test_the_newest_need_the_newest_files_only(run: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = browse.read_rows

    def noting(path: Path, row_group: int, names: Sequence[str]) -> Any:
        read.append(path.name)
        assert not {"tokens", "token_logprobs", "reference_token_logprobs"} & set(names)
        return original(path, row_group, names)

    monkeypatch.setattr(browse, "read_rows", noting)
    assert run.texts(num=1) == ["r 5.0"]
    # The first is read for what the log begins with.
    assert set(read) == {"000000000-000000000.parquet", "000000002.parquet"}


def test_the_best_and_the_worst_are_of_different_prompts_as_far_as_there_are_some(run: Recorded) -> None:
    assert run.texts(order="best", num=3) == ["r 4.1", "r 2.0", "r 5.0"]
    assert run.texts(order="worst", num=2) == ["r 3.1", "r 2.1"]
    assert run.texts(order="best", num=5) == ["r 4.1", "r 4.0", "r 2.0", "r 5.0", "r 5.1"]
    assert len(run.texts(order="best", num=99)) == 10


def test_no_text_is_shown_twice(tmp_path: Path) -> None:
    """Late in a run nearly all responses to a prompt are the same."""
    recorded = Recorded(tmp_path)
    recorded.log.append([group(1, "a", [1.0] * 300 + [0.5], texts="x" * 300 + "y")], Version(0, 0))
    assert recorded.texts(order="best", num=3) == ["x", "y"]


def test_a_prompt_is_found_by_its_id_and_by_its_text_and_shown_over_time(run: Recorded) -> None:
    assert run.texts(prompt="a") == ["r 1.0", "r 3.0", "r 5.0"]
    assert run.texts(prompt="IS A?", num=2) == ["r 1.0", "r 5.0"]
    of_prompt = run.find(prompt="a").of_prompt
    assert of_prompt is not None
    assert of_prompt.rewards.tolist() == [0.0, 0.5, 0.75, 0.0, 0.9, 0.8]
    assert run.texts(prompt="a", order="best", num=2) == ["r 5.0", "r 5.1"]
    with pytest.raises(TbaError, match=r"^3 prompts hold 'what': name one by its id: a \(What is a\?\), b"):
        run.find(prompt="what")
    with pytest.raises(TbaError, match="no prompt has the id 'zebra'"):
        run.find(prompt="zebra")


def test_steps_are_those_of_the_weights(run: Recorded) -> None:
    assert run.texts(steps=Steps(1, 1)) == ["r 4.0", "r 3.0"]
    assert run.texts(steps=Steps(0, 1), prompt="a") == ["r 1.0", "r 3.0"]
    assert run.texts(steps=Steps(2, 9), order="worst", num=1) == ["r 5.1"]
    with pytest.raises(TbaError, match=r"weights of steps 2 to 3: .* are of steps 1 and 4$"):
        run.find(steps=Steps(2, 3))
    with pytest.raises(TbaError, match=r"to this prompt made by weights of step 4: .* are of step 0$"):
        run.find(steps=Steps(4, 4), prompt="b")
    with pytest.raises(TbaError, match=r"weights of step 9: .* are of step 4$"):
        run.find(steps=Steps(9, 9))


def test_a_sample_knows_where_it_comes_from_and_what_became_of_it(run: Recorded) -> None:
    (newest,) = run.find(num=1, order="worst", prompt="a", steps=Steps(1, 1)).samples
    record = newest.record()
    assert record["row"] == 5
    assert record["columns"] == {"answer": "a"}
    assert record["reward_parts"] == {"right": 0.0}
    assert record["group"] == {"num_responses": 2, "lowest_reward": 0.0, "mean_reward": 0.375, "highest_reward": 0.75}
    assert (record["version"], record["merged_step"], record["num_tokens"]) == (1, 2, 2)
    assert (record["staleness_when_merged"], record["age"], record["times_trained"]) == (1, 3, 0)
    times = {s.row: s.times_trained for s in run.find(order="best", num=99).samples}
    assert times == {0: 2, 1: 1, 2: 2, 3: 0, 4: 1, 5: 0, 6: 0, 7: 0, 8: 0, 9: 2}


def test_ages_follow_the_epochs_of_a_resumed_run(run: Recorded) -> None:
    """Resumed from step 3: what weights of step 4 made is one step off the line."""
    epochs = Epochs()
    epochs.branch(Version(0, 3))
    epochs.write(run.run)
    run.draws.go_back_to(3)
    run.merge(("d", [0.0, 1.0]), at=3, version=Version(1, 3))
    run.draws.append(4, [[9, 10]])
    found = {s.sample.version: s for s in run.find(num=99).samples}
    assert found[Version(0, 4)].age == 2
    assert found[Version(1, 3)].age == 1
    assert found[Version(0, 4)].times_trained == 0
    assert run.find(order="best", prompt="a", num=99).samples[1].times_trained == 2


def test_a_log_whose_files_are_joined_meanwhile_is_read_again(run: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    original = browse.read_rows
    joined = []

    def joining(path: Path, row_group: int, names: Sequence[str]) -> Any:
        if not joined:
            joined.append(path)
            run.log.compact()
        return original(path, row_group, names)

    monkeypatch.setattr(browse, "read_rows", joining)
    assert run.texts(num=2) == ["r 5.0", "r 4.0"]
    assert joined


def test_a_run_without_responses_says_so(tmp_path: Path) -> None:
    with pytest.raises(TbaError, match="has no responses yet"):
        Recorded(tmp_path).find()


@pytest.mark.parametrize("name", ["inline", "local"])
def test_runs_of_the_first_version_are_read(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(DATA / name, folder)
    samples = find(folder, folder / "rollouts", Query(num=99)).samples
    assert samples
    for sample in samples:
        record = sample.record()
        assert record["prompt"]
        assert record["reward_parts"]
        assert (record["columns"], record["merged_step"], record["staleness_when_merged"]) == (None, None, None)
        assert record["age"] >= 0
    assert sum(sample.times_trained for sample in samples) > 0


# ---------------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------------


def test_json_has_one_record_a_line_with_nothing_cut(run: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J[red]\n\u202e" + "long " * 5_000
    made = group(9, "evil", [1.0, 0.0])
    evil = (replace(t, response=replace(t.response, text=hostile)) for t in made.trajectories)
    run.log.append([replace(made, trajectories=tuple(evil))], Version(0, 4))
    assert main(["samples", str(run.run), "--json", "--num", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["response"] for line in lines] == [hostile, "r 5.0"]
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_a_terminal_that_knows_ascii_only_gets_the_rest_written_out(run: Recorded) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "tba.cli", "samples", str(run.run), "--num", "1"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "\\u2500\\u2500 response 8 \\xb7 prompt a" in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--best", "--worst"], "--best and --worst are two orders: choose one"),
        (["--step", "9-3"], "--step = '9-3' is no step and no range of steps: give one such as 40, or 40-60"),
        (["--num", "0"], "--num = '0' is no number of responses: give 1 or more"),
        (["--newest"], "unexpected argument '--newest': tba samples --help lists what there is"),
        (["--prompt"], "--prompt needs a value"),
        (["nowhere"], "there is no run at nowhere"),
        ([], "there is no run in runs yet: name one, or make one with tba train"),
    ],
)
def test_what_is_asked_for_wrongly_is_told_in_one_line(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["samples", *words]) == 2
    assert capsys.readouterr().err == f"tba: {told}\n"


def test_without_a_name_it_is_the_newest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(["new", "old"]):
        recorded = Recorded(tmp_path / "runs" / name)
        recorded.merge((f"prompt of {name}", [0.0, 1.0]))
        write_run_config(recorded.run, Config.embedded())
        for file in (".lock", "metrics.jsonl", "config.toml"):
            (recorded.run / file).touch()
            os.utime(recorded.run / file, (1_000 - number, 1_000 - number))
    assert main(["samples", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_id"] == "prompt of new"
