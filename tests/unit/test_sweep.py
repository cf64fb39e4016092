"""Sweeps: which arms a space has, what a run counts as, who is stopped, and what is refused before anything starts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tba.cli import main
from tba.config.settings import to_toml
from tba.sweep.arms import Range, grid, nested, random_arms
from tba.sweep.children import check_same_settings
from tba.sweep.elimination import hopeless
from tba.sweep.record import Record, Result, is_finished, read_record, result_of, value_of
from tba.sweep.report import markdown, rank
from tba.sweep.settings import Sweep, SweepSettings, read_sweep
from tba.types import TbaError

SPACE = """
[sweep]
seeds = [3, 4]
root = "{root}"

[settings]
run.launcher = "inline"
trainer.num_steps = 4

[space]
trainer.learning_rate = [1e-4, 1e-3]
objective.beta = [0.05, 0.5]
"""


def written(folder: Path, text: str = SPACE) -> Path:
    path = folder / "tune.toml"
    path.write_text(text.replace("{root}", str(folder / "runs")), "utf-8")
    return path


def result(arm: str, seed: int, value: float | None, **rest: Any) -> Result:
    return Result(arm, {}, seed, "accuracy", value, 1.0, **rest)


# ---------------------------------------------------------------------------------------------------------------------
# Arms
# ---------------------------------------------------------------------------------------------------------------------


def test_a_grid_has_every_combination_once(tmp_path: Path) -> None:
    sweep = read_sweep(written(tmp_path))
    assert [arm.settings for arm in sweep.arms] == [
        {"trainer.learning_rate": rate, "objective.beta": beta} for rate in (1e-4, 1e-3) for beta in (0.05, 0.5)
    ]
    assert len(sweep.runs) == 8
    run = sweep.runs[sweep.arms[3].name, 4]
    assert run.folder == tmp_path / "runs" / "tune" / "learning_rate=0.001,beta=0.5-seed4"
    assert (run.config.trainer.learning_rate, run.config.objective.beta, run.config.run.seed) == (1e-3, 0.5, 4)
    assert run.config.trainer.num_steps == 4
    assert run.config.model.path == "arithmetic", "from the base"


def test_values_may_be_tables_that_set_several_settings_at_once(tmp_path: Path) -> None:
    text = (
        '[sweep]\nroot = "{root}"\n[space]\ntrainer = [{learning_rate = 1e-4, num_steps = 5}, {learning_rate = 1e-3}]'
    )
    runs = read_sweep(written(tmp_path, text)).runs.values()
    assert {(run.config.trainer.learning_rate, run.config.trainer.num_steps) for run in runs} == {
        (1e-4, 5),
        (1e-3, 120),
    }
    assert len({run.name for run in runs}) == 4


def test_variants_are_run_at_every_point_of_the_space(tmp_path: Path) -> None:
    text = """
[sweep]
seeds = [3]
root = "{root}"
[settings]
trainer.staleness = 7
[space]
trainer.staleness = [0, 10]
[variants]
plain = { objective.stale_negatives = "keep", trainer.learning_rate = 2e-4 }
peer = { objective = { kind = "dr_grpo", clip_high = 0.28 }, trainer.learning_rate = 4e-4 }
"""
    sweep = read_sweep(written(tmp_path, text))
    trainers = {name: run.config.trainer for (name, _), run in sweep.runs.items()}
    assert {name: (trainer.staleness, trainer.learning_rate) for name, trainer in trainers.items()} == {
        "variant=plain,staleness=0": (0, 2e-4),
        "variant=plain,staleness=10": (10, 2e-4),
        "variant=peer,staleness=0": (0, 4e-4),
        "variant=peer,staleness=10": (10, 4e-4),
    }
    peer = sweep.runs["variant=peer,staleness=10", 3]
    assert (peer.config.objective.kind, peer.config.objective.clip_high) == ("dr_grpo", 0.28)
    page = markdown(sweep, rank(sweep, [result(peer.arm.name, 3, 0.9)], {}), "accuracy", Path("tune.toml"))
    assert 'kind = "dr_grpo"' in page, "the settings of the best arm, spelt out"


def test_arms_keep_their_names_when_a_space_grows() -> None:
    small = {arm.name for arm in grid({"a.x": [1, 2]})}
    assert small < {arm.name for arm in grid({"a.x": [0, 1, 2, 3]})}


def test_names_of_different_arms_differ() -> None:
    texts = [f"{'x' * 200}{end}" for end in "ab"] + ["a/b", "a:b", "a_b"]
    assert len({arm.name for arm in grid({"a.x": texts})}) == len(texts)
    assert all("/" not in arm.name and len(arm.name) < 200 for arm in grid({"a.x": texts}))
    both = grid({"a.x": [1], "b.x": [2]})
    assert both[0].name == "a.x=1,b.x=2", "where the last parts are alike, the whole names"


@given(st.floats(1e-6, 1.0), st.floats(1.001, 1e4), st.integers(0, 2**20), st.booleans())
def test_random_numbers_lie_in_their_range(low: float, ratio: float, seed: int, log: bool) -> None:
    arms = random_arms({"a.x": Range(low, low * ratio, log), "a.n": Range(2, 5)}, 3, seed)
    for arm in arms:
        assert low <= arm.settings["a.x"] <= low * ratio
        assert arm.settings["a.n"] in (2, 3, 4, 5)


def test_half_of_a_logarithmic_range_lies_below_its_geometric_middle() -> None:
    arms = random_arms({"a.x": Range(1e-6, 1e-2, log=True)}, 400, 0)
    share = sum(arm.settings["a.x"] < 1e-4 for arm in arms) / len(arms)
    assert abs(share - 0.5) < 5 * math.sqrt(0.25 / 400), "fixed seed, five standard errors"


def test_more_random_arms_begin_with_the_fewer() -> None:
    space = {"a.x": Range(0.0, 1.0), "a.y": ["u", "v"]}
    assert random_arms(space, 9, 7)[:4] == random_arms(space, 4, 7)
    assert random_arms(space, 4, 8) != random_arms(space, 4, 7)


def test_settings_nest_by_their_dots() -> None:
    assert nested({"a.b": 1, "a.c.d": 2, "e": {"f": 3}}) == {"a": {"b": 1, "c": {"d": 2}}, "e": {"f": 3}}
    with pytest.raises(TbaError, match="one value"):
        nested({"model": "x", "model.path": "y"})


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sweep]\nseed_s = [1]", "unknown setting sweep.seed_s"),
        ("[sweep]\nseeds = [1, 1]", "each must be there once"),
        ("[sweep]\nseeds = []", "sweep.seeds"),
        ('[sweep]\nname = "a/b"', "plain folder name"),
        ('[sweep]\nmethod = "random"', "sweep.num_arms"),
        ("[sweep]\nnum_arms = 3", "sweep.num_arms"),
        ("[sweep]\nparallel = 2", "set run.num_threads"),
        ('[sweep]\nbase = "no-such.toml"', "no configuration file"),
        ("[space]\ntrainer.learning_rate = 1e-4", "move it to [settings]"),
        ("[space]\ntrainer.learning_rate = []", "empty list"),
        ("[space]\ntrainer.learning_rate = [1e-4, 1e-4]", "twice"),
        ("[space]\ntrainer.learning_rate = {low = 1e-5, high = 1e-3}", "which a grid cannot run through"),
        ("[space]\ntrainer.learning_rate = {low = 1e-5}", "is no range"),
        ('[sweep]\nmethod = "random"\nnum_arms = 2\n[space]\nobjective.beta = {low = 0, high = 1.0, log = true}',
         "low > 0"),
        ('[sweep]\nmethod = "random"\nnum_arms = 3\n[space]\ntrainer.learning_rate = [1e-4, 1e-3]', "ask for fewer"),
        ("[space]\nrun.seed = [1, 2]", "set sweep.seeds"),
        ('[settings]\nrun.root = "x"', "set sweep.root"),
        ("[variants]\na = { run.seed = 1 }", "set sweep.seeds"),
        ('[variants]\na = "plain"', "variants.a"),
        ("[space]\nvariant = [1, 2]", "name variants in [variants]"),
        ("[variants]\na = { trainer.learning_rte = 1.0 }", "variant=a: unknown setting trainer.learning_rte"),
        ("[space]\ntrainer.learning_rate = [1e-4, -1.0]", "learning_rate=-1.0: trainer.learning_rate"),
        ("[space]\ntrainer.group_size = [16, 17]", "group_size=17: trainer.group_size = 17 is more than"),
        ("[space]\ntrainer.learning_rte = [1e-4]", "did you mean trainer.learning_rate?"),
        ('[space]\nmodel = ["no/such/folder"]', "no/such/folder"),
        ("[sweep", "is not valid TOML"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.toml").write_text(text, "utf-8")
    assert main(["sweep", "space.toml"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("tba: ")
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["space.toml"], "nothing has begun"


def test_a_file_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--dry-run"]) == 2
    assert "SPACE.toml" in capsys.readouterr().err


def test_a_dry_run_shows_the_arms_and_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path)
    assert main(["sweep", str(path), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "4 arms with the seeds 3, 4" in shown
    assert "0.0001" in shown
    assert not (tmp_path / "runs").exists()


def test_a_sweep_with_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    sweep = read_sweep(written(tmp_path))
    run = next(iter(sweep.runs.values()))
    path = sweep.folder / "configs" / f"{run.name}.toml"
    path.parent.mkdir(parents=True)
    path.write_text(to_toml(run.config), "utf-8")
    check_same_settings(run)
    changed = read_sweep(written(tmp_path, SPACE.replace("num_steps = 4", "num_steps = 6")))
    with pytest.raises(TbaError, match=r"another trainer.num_steps \(4, now 6\): choose another sweep.name"):
        check_same_settings(changed.runs[run.arm.name, run.seed])


# ---------------------------------------------------------------------------------------------------------------------
# What runs count as, and who is stopped
# ---------------------------------------------------------------------------------------------------------------------


def test_what_a_curve_counts_as() -> None:
    values = [0.5, 0.9, 0.7, 0.8]
    assert value_of(values, SweepSettings()) == 0.8
    assert value_of(values, SweepSettings(value="best")) == 0.9
    assert value_of(values, SweepSettings(value="best", minimize=True)) == 0.5
    assert value_of(values, SweepSettings(value="mean")) == pytest.approx(0.8)
    assert value_of([0.5], SweepSettings(value="mean")) == 0.5


def test_the_largest_drop_is_from_the_best_so_far() -> None:
    found = result("a", 0, 0.8, curve=[(0, 0, 0.5), (1, 0, 0.9), (2, 0, 0.7), (3, 0, 0.8)])
    assert found.largest_drop() == pytest.approx(0.2)
    assert found.largest_drop(minimize=True) == pytest.approx(0.4)


def test_an_arm_is_stopped_by_its_distance_from_the_best_over_the_same_seeds() -> None:
    arms = {
        "best": [result("best", 0, 0.9), result("best", 1, 0.7)],
        "near": [result("near", 0, 0.6), result("near", 1, 0.9)],
        "far": [result("far", 0, 0.7), result("far", 1, 0.69)],
        "failed": [result("failed", 0, 0.95), result("failed", 1, None, failure="out of memory")],
    }
    stopped = hopeless(arms, SweepSettings(stop_margin=0.1))
    assert set(stopped) == {"far", "failed"}
    assert stopped["far"].after_seeds == 2
    assert "out of memory" in stopped["failed"].reason
    assert set(hopeless(arms, SweepSettings())) == {"failed"}, "without a margin every arm gets every seed"
    assert set(hopeless(arms, SweepSettings(stop_margin=0.0, stop_after=3))) == {"failed"}
    small = {"near", "best", "failed"}
    assert set(hopeless(arms, SweepSettings(stop_margin=0.05, minimize=True))) == small


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.floats(0, 1), st.booleans())
def test_the_best_arm_is_never_stopped(values: list[float], margin: float, minimize: bool) -> None:
    arms = {str(i): [result(str(i), 0, value)] for i, value in enumerate(values)}
    stopped = hopeless(arms, SweepSettings(stop_margin=margin, minimize=minimize))
    best = min(values) if minimize else max(values)
    assert stopped.keys().isdisjoint(str(i) for i, value in enumerate(values) if value == best)
    assert set(stopped) == {str(i) for i, value in enumerate(values) if abs(value - best) > margin}


def test_arms_that_had_every_seed_come_before_those_that_were_stopped(tmp_path: Path) -> None:
    sweep = read_sweep(written(tmp_path))
    a, b, c, d = (arm.name for arm in sweep.arms)
    results = [result(a, 3, 0.2), result(b, 3, 0.8), result(b, 4, 0.6), result(c, 3, 0.75), result(c, 4, 0.75)]
    results.append(result(d, 3, None, failure="killed | by the kernel"))
    stopped = hopeless({a: results[:1], d: results[-1:]} | {c: results[3:4]}, SweepSettings(stop_margin=0.1))
    ranked = rank(sweep, results, stopped)
    assert [found.arm.name for found in ranked] == [c, b, a, d]
    assert ranked[1].mean == pytest.approx(0.7)
    assert ranked[1].standard_error == pytest.approx(0.1), "the spread of two values over the root of two"
    page = markdown(sweep, ranked, "accuracy", Path("tune.toml"))
    assert "| 0.0001 | 0.5 | 0.7000 ± 0.1000 | 0.8000, 0.6000 |" in page
    assert r"killed \| by the kernel" in page


# ---------------------------------------------------------------------------------------------------------------------
# The record
# ---------------------------------------------------------------------------------------------------------------------


def test_the_record_has_the_newest_line_of_each_run_and_survives_a_torn_one(tmp_path: Path) -> None:
    Record(tmp_path).append(result("a", 0, 0.5))
    with open(tmp_path / "sweep.jsonl", "a") as file:
        file.write('{"arm": "b", "se')
    record = Record(tmp_path)
    record.append(result("a", 0, 0.5))
    record.append(result("a", 0, 0.6))
    record.append(result("b", 0, None, failure="no"))
    found = {(line["arm"], line["seed"]): line["value"] for line in read_record(tmp_path)}
    assert found == {("a", 0): 0.6, ("b", 0): None}
    assert len((tmp_path / "sweep.jsonl").read_text("utf-8").splitlines()) == 4, "what is there is not written again"


def a_run(sweep: Sweep, *, steps: int, evaluated: list[tuple[int, float]], summary: bool = True) -> Any:
    """The folder of a sweep's first run, as a run leaves it."""
    run = next(iter(sweep.runs.values()))
    run.folder.mkdir(parents=True)
    lines = [{"kind": "eval", "step": step, "time": 2.0 * step, "accuracy": value} for step, value in evaluated]
    lines.append({"kind": "train", "step": steps, "time": 9.0, "staleness/counts": {}, "loss": 1.0, "num_tokens": 5})
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (run.folder / "checkpoints" / f"step-{steps:06d}").mkdir(parents=True)
    if summary:
        (run.folder / "summary.json").write_text(json.dumps({"steps": steps, "wall_seconds": 9.0}), "utf-8")
    return run


def test_a_finished_run_is_recognised_by_its_summary(tmp_path: Path) -> None:
    sweep = read_sweep(written(tmp_path))
    run = a_run(sweep, steps=4, evaluated=[(0, 0.5), (2, 0.7), (4, 0.6)])
    assert is_finished(run)
    found = result_of(run, sweep.settings)
    assert (found.value, found.seconds, found.metric) == (0.6, 9.0, "accuracy")
    assert found.curve == [(0, 0.0, 0.5), (2, 4.0, 0.7), (4, 8.0, 0.6)]
    missing = result_of(run, SweepSettings(metric="win_rate"))
    assert missing.value is None
    assert "no evaluation has a number 'win_rate'" in missing.failure


def test_a_run_that_stopped_in_order_is_not_finished(tmp_path: Path) -> None:
    assert not is_finished(a_run(read_sweep(written(tmp_path)), steps=2, evaluated=[(0, 0.5), (2, 0.7)]))


@pytest.mark.parametrize("last", [2, 4])
def test_a_run_killed_before_its_summary_counts_if_its_last_weights_were_evaluated(tmp_path: Path, last: int) -> None:
    run = a_run(read_sweep(written(tmp_path)), steps=4, evaluated=[(0, 0.5), (last, 0.7)], summary=False)
    assert is_finished(run) == (last == 4)
    assert (run.folder / "summary.json").exists() == (last == 4)
