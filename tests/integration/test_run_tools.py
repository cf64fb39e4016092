"""Runs as their user looks at them: listed while they go on, killed, compared, evaluated by their folder, as charts."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_runs import arguments, records, small_config, started, tba, tba_here
from test_processes import until

from tba.api import start
from tba.runs.activity import read_activities
from tba.runs.folder import is_held
from tba.runs.newest import newest_run

DOCS = Path(__file__).parents[2] / "docs"


def listed(root: Path) -> dict[str, dict[str, Any]]:
    return {Path(row["path"]).name: row for row in json.loads(tba_here("runs", str(root), "--json").stdout)}


def test_a_run_is_running_until_it_is_killed_and_then_it_has_crashed(tmp_path: Path) -> None:
    config = small_config(tmp_path, "going", trainer={"num_steps": 100_000})
    run = tmp_path / "going"
    with started("train", *arguments(config)) as process:
        until(lambda: len(records(run, "train")) > 6 and records(run, "eval"), process)
        before = listed(tmp_path)["going"]
        assert (before["state"], before["num_steps"]) == ("running", 100_000)
        assert before["step"] >= 6
        assert before["last"] is not None
        compared = json.loads(tba_here("compare", str(run), "--json").stdout)
        assert compared["runs"]["going"]["state"] == "running"
        assert newest_run(tmp_path) == run
        pids = [process.pid, *(activity["pid"] for activity in read_activities(run))]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        process.wait()
    assert not is_held(run)
    assert listed(tmp_path)["going"]["state"] == "crashed"
    status = tba_here("status", str(run))
    assert status.returncode == 1
    assert "crashed, step" in status.stdout


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    start(small_config(root, "done", metrics={"tensorboard": True}))
    return root / "done"


def test_a_run_is_evaluated_by_its_folder(finished: Path) -> None:
    evaluated = tba("eval", str(finished), "--evaluation.num-samples", "2", "--task.num-eval", "1")
    assert evaluated.returncode == 0, evaluated.stderr
    first, *_ = evaluated.stdout.splitlines()
    assert first.endswith(str(finished / "checkpoints/step-000008/model"))
    assert "evaluating on arithmetic: prompts answered greedily: 1/1 prompts" in evaluated.stdout
    assert "evaluating on arithmetic: prompts answered with 2 samples each: 1/1 prompts" in evaluated.stdout
    assert "nan" not in evaluated.stdout
    assert "│ accuracy of greedy " in evaluated.stdout
    assert listed(finished.parent)["done"]["state"] == "finished"


def test_another_run_starts_from_its_newest_checkpoint(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # paths are not folded
    config = small_config(finished.parent, "next", run={"display": "plain"}, trainer={"num_steps": 2})
    begun = tba_here("train", *arguments(config, without="model"), "--model", str(finished))
    assert begun.returncode == 0, begun.stderr
    model = finished / "checkpoints/step-000008/model"
    assert f"model.path: {finished} is a run: its newest checkpoint is taken, {model}\n" in begun.stdout
    assert str(model) in (finished.parent / "next/config.toml").read_text()
    assert "evaluate it" in begun.stdout
    assert f"tba eval {finished.parent / 'next'}" in begun.stdout


def test_no_chart_stands_alone_and_none_is_a_ramp_of_time(finished: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    groups = Counter(tag.partition("/")[0] for tag in tags)
    assert min(groups.values()) > 1, groups
    assert {"train", "search", "eval", "time", "search_time", "responses", "off_policy", "staleness"} <= set(groups)
    assert all("/" in tag for tag in tags)
    assert not any("seconds/" in tag or "process_seconds" in tag for tag in tags)
    shares = [e.value for tag in tags if tag.startswith("time/") for e in events.Scalars(tag) if e.step == 1]
    assert sum(shares) == pytest.approx(1.0, abs=1e-2), "of all activities together, since the start"
    page = (DOCS / "metrics.md").read_text("utf-8").partition("## Charts")[2].partition("\n## ")[0]
    assert [group for group in groups if f"`{group}/" not in page] == []
