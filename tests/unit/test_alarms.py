"""Every alarm goes off where it should and not where it should not, once until it clears, and has a page."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tba.config.help import setting_names
from tba.config.settings import Config
from tba.runs.activity import Activity
from tba.runs.alarm_measures import KL_REPORTS, OVERLAP_STEPS, USUAL_GAP, WARM_UP_STEPS, Known
from tba.runs.alarms import ALARM, ALARM_CLEARED, RULES, Alarms, Rule, raised
from tba.runs.display import told
from tba.runs.metrics import Metrics, read_metrics
from tba.runs.panel import panel
from tba.runs.progress import RunProgress
from tba.runs.run_config import write_run_config
from tba.runs.status import show_status
from tba.runs.summary import summarise
from tba.tasks.base import TaskSettings

Records = list[dict[str, Any]]
DOCS = Path(__file__).parents[2] / "docs"
LONG = WARM_UP_STEPS + OVERLAP_STEPS


def train(count: int = 10, **values: Any) -> Records:
    return [{"kind": "train", "step": step, **_slashed(values)} for step in range(1, count + 1)]


def search(count: int = 10, *, version: int = 0, **values: Any) -> Records:
    return [{"kind": "search", "step": 0, "version": version, **_slashed(values)} for _ in range(count)]


def evaluation(version: int, reward: float, num_prompts: int = 256) -> Records:
    return [{"kind": "eval", "step": version, "version": version, "reward": reward, "num_prompts": num_prompts}]


def _slashed(values: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "/"): value for name, value in values.items()}


def rewards(before: float, after: float, held_out: float, num_prompts: int = 256) -> Records:
    """Reports around an evaluation of version 10. The standard deviation of rewards is one half."""
    reports = search(5, version=8, reward=before, reward_std=0.5)
    return [*reports, *evaluation(10, held_out, num_prompts), *search(5, version=10, reward=after, reward_std=0.1)]


def overlapping(both: float, count: int = LONG) -> Records:
    return train(count, overlap__both_seconds=both, overlap__search_seconds=1.0, overlap__train_seconds=1.0)


def norms(*parts: tuple[int, float]) -> Records:
    return [record for count, norm in parts for record in train(count, grad_norm=norm)]


def divergences(before: float, after: float, gain: float = 0.0) -> Records:
    """KL before and after, while the reward rises by the gain."""
    return [*search(KL_REPORTS, kl=before, reward=0.5), *search(KL_REPORTS, kl=after, reward=0.5 + gain)]


def spread(equal: float, *reports: Records) -> Records:
    """Reports, and then steps in which so large a share of the groups has equal rewards."""
    return [record for report in (*reports, train(frac_reward_zero_std=equal)) for record in report]


EQUAL, NOTHING, CUT, FAIL, KL, NORM, DRIFT, DISTINCT, OVER, GAP, OVERLAP = (rule.name for rule in RULES)
OWN_REWARD = Known(is_graded=False, num_responses=4)
VARIED = search(1, reward=0.5, reward_std=0.2, right=0.5)
PLAIN = Known()
ASYNCHRONOUS = Known(is_asynchronous=True)
INT8 = Known(precisions=("int8", "float32"))
HOTTER = Known(explores_hotter=True)

FIRES: list[tuple[str, Known, Records]] = [
    (EQUAL, OWN_REWARD, spread(1.0, search(3, reward=0.195, reward_std=1e-17, right=0.0))),
    (EQUAL, Known(), spread(1.0, search(3, reward=1.0, reward_std=0.0, right=1.0))),
    (EQUAL, Known(), spread(0.95, VARIED)),
    (EQUAL, Known(), train(3, frac_reward_zero_std=1.0)),
    (NOTHING, Known(), search(9, groups=8, right=0.0)),
    (CUT, Known(), search(3, completions__clipped_ratio=0.69)),
    (FAIL, OWN_REWARD, search(1, groups=4, failed=8)),
    (FAIL, OWN_REWARD, search(3, groups=2, failed=8)),
    (KL, Known(), divergences(3.0, 8.0)),
    (KL, Known(), divergences(0.1, 8.0, gain=-0.2)),
    (NORM, Known(), norms((20, 1.0), (5, 6.0))),
    (DRIFT, Known(), train(log_pi_mu__right=-1.1)),
    (DRIFT, Known(), train(log_pi_mu__right=-1.5, log_pi_mu__age_0=-0.1)),
    (DRIFT, INT8, train(log_pi_mu__right=-7.0, log_pi_mu__age_0=-5.0)),
    (DISTINCT, Known(num_responses=16), search(completions__distinct=1 / 16, right=0.3)),
    (DISTINCT, Known(num_responses=2), search(completions__distinct=0.6, right=0.8)),
    (OVER, Known(), rewards(before=0.9, after=0.95, held_out=0.5)),
    (GAP, Known(), train(engine_gap__mean=0.02)),
    (GAP, Known(precisions=("float32", "bfloat16")), train(engine_gap__mean=0.2)),
    (GAP, INT8, train(engine_gap__mean=0.7)),
    (OVERLAP, ASYNCHRONOUS, overlapping(0.05)),
]
KEEPS_QUIET: list[tuple[str, Known, Records]] = [
    (EQUAL, Known(), spread(0.85, VARIED)),
    (EQUAL, Known(), train(2, frac_reward_zero_std=1.0)),
    (EQUAL, Known(), spread(1.0, VARIED, search(10, reward=0.9, reward_std=0.0, right=0.9))),
    (EQUAL, OWN_REWARD, spread(1.0, VARIED, search(10, reward=0.8, reward_std=0.0, right=0.0))),
    (EQUAL, Known(), spread(1.0, search(3, reward=0.0, reward_std=0.0, right=0.0))),
    (NOTHING, Known(), search(8, groups=8, right=0.0)),
    (NOTHING, Known(), [*search(8, groups=8, right=0.0), *search(1, groups=1, right=0.1), *search(9, right=0.0)]),
    (NOTHING, OWN_REWARD, search(9, groups=8, right=0.0)),
    (CUT, Known(), search(5, completions__clipped_ratio=0.5)),
    (CUT, Known(), search(2, completions__clipped_ratio=1.0)),
    (FAIL, OWN_REWARD, search(3, groups=4, failed=4)),
    (FAIL, OWN_REWARD, search(1, groups=1, failed=4)),
    (KL, Known(), divergences(3.0, 5.9)),
    (KL, Known(), divergences(3.0, 30.0, gain=0.1)),
    (KL, Known(), divergences(0.01, 3.9)),
    (KL, Known(), search(2 * KL_REPORTS, kl=None, reward=0.5)),
    (NORM, Known(), norms((20, 1.0), (2, 60.0), (3, 1.0))),
    (NORM, Known(), norms((20, 1.0), (5, 4.9))),
    (NORM, Known(), norms((19, 1.0), (5, 60.0))),
    (NORM, Known(), norms((14, 0.0), (6, 2.0), (5, 9.0))),
    (NORM, Known(), norms((30, 0.0), (5, 9.0))),
    (DRIFT, Known(), train(log_pi_mu__right=-0.9)),
    (DRIFT, Known(), train(log_pi_mu__right=2.0, log_pi_mu__wrong=-50.0)),
    (DRIFT, INT8, train(log_pi_mu__right=-5.5, log_pi_mu__age_0=-5.0)),
    (DRIFT, INT8, train(log_pi_mu__right=-5.5)),
    (DRIFT, HOTTER, train(log_pi_mu__right=-5.5)),
    (DRIFT, Known(), train(4, log_pi_mu__right=-5.5)),
    (DRIFT, Known(), train(log_pi_mu__right=None)),
    (DRIFT, Known(), train(log_pi_mu__right=float("nan"))),
    (DISTINCT, Known(num_responses=16), search(completions__distinct=0.2, right=0.3)),
    (DISTINCT, Known(num_responses=16), search(completions__distinct=1 / 16, right=0.97)),
    (DISTINCT, Known(num_responses=2), search(completions__distinct=0.8, right=None)),
    (OVER, Known(), rewards(before=0.8, after=0.85, held_out=0.7)),
    (OVER, Known(), rewards(before=0.3, after=0.95, held_out=0.4)),
    (OVER, Known(), rewards(before=0.9, after=0.3, held_out=0.3)),
    (OVER, Known(), rewards(before=0.9, after=0.9, held_out=0.5, num_prompts=8)),
    (OVER, Known(), [*search(20, version=5, reward=0.9, reward_std=0.5), *evaluation(10, 0.0)]),
    (OVER, Known(), search(20, reward=0.9, reward_std=0.5)),
    (GAP, Known(), train(engine_gap__mean=1e-5)),
    (GAP, Known(precisions=("float32", "bfloat16")), train(engine_gap__mean=0.03)),
    (GAP, INT8, train(engine_gap__mean=0.3)),
    (GAP, HOTTER, train(engine_gap__mean=0.5)),
    (GAP, Known(), train()),
    (OVERLAP, ASYNCHRONOUS, overlapping(0.2)),
    (OVERLAP, ASYNCHRONOUS, overlapping(0.0, LONG - 1)),
    (OVERLAP, Known(is_asynchronous=False), overlapping(0.0)),
    (OVERLAP, ASYNCHRONOUS, train(LONG)),
]


def events_of(records: Records, known: Known = PLAIN) -> Records:
    alarms = Alarms(known)
    return [event for record in records for event in alarms.look(record)]


@pytest.mark.parametrize(("name", "known", "records"), FIRES)
def test_it_goes_off(name: str, known: Known, records: Records) -> None:
    [event] = events_of(records, known)
    assert (event["event"], event["alarm"]) == (ALARM, name)
    assert event["message"].endswith(f"See docs/tuning.md#{name.lower().replace(' ', '-')}")
    assert "\n" not in event["message"]


@pytest.mark.parametrize(("name", "known", "records"), KEEPS_QUIET)
def test_it_keeps_quiet(name: str, known: Known, records: Records) -> None:
    assert events_of(records, known) == []


def test_every_rule_is_tried_both_ways() -> None:
    names = {rule.name for rule in RULES}
    assert len(names) == len(RULES)
    assert {name for name, _, _ in FIRES} == {name for name, _, _ in KEEPS_QUIET} == names


def test_every_rule_says_what_to_change_by_settings_that_exist() -> None:
    known = setting_names()
    for rule in RULES:
        assert re.fullmatch(r"[A-Z].+\.", rule.remedy), rule.name
        named = re.findall(rf"\b(?:{'|'.join(Config.model_fields)})\.[a-z]\w+", rule.remedy)
        assert [name for name in named if name not in known] == ["metrics.jsonl"] * (rule.name == FAIL)


def test_every_rule_has_its_row_in_the_table_of_the_page() -> None:
    page = (DOCS / "tuning.md").read_text("utf-8")
    rows = re.findall(r"^\| \[.*\|$", page, re.MULTILINE)
    anchor = "[{0}](#{1})".format
    assert rows == [
        f"| {anchor(rule.name, rule.link.partition('#')[2])} | {rule.measured} | {rule.limit_text} |" for rule in RULES
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_metric_that_tells_most_says_what_is_healthy(rule: Rule) -> None:
    """The page of metrics has the rule's limit in the column "healthy" of the number, with the way to what can be done,
    and says on which side of it a run is healthy."""
    page = (DOCS / "metrics.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if re.match(rf"\| [^|]*`{re.escape(rule.metrics[0])}`", line)]
    columns = [re.split(r" (?<!\\)\| ", row.strip("| "))[-1] for row in rows]
    [healthy] = [column for column in columns if f"(tuning.md#{rule.link.partition('#')[2]})" in column]
    limits = USUAL_GAP.values() if rule.name == GAP else [rule.limit]
    sides = ("below", "at most", "within the first") if rule.when == "above" else ("above",)
    found = re.findall(rf"(?:{'|'.join(sides)}) (−?[\d.]*\d)((?:(?:,| and) [\d.]*\d)*)", healthy, re.IGNORECASE)
    told = {
        float(number.replace("−", "-")) for first, rest in found for number in [first, *re.findall(r"[\d.]+", rest)]
    }
    assert set(limits) <= told, f"{healthy!r} does not say {rule.limit_text}"


def test_every_rule_has_a_section_of_the_page() -> None:
    page = (DOCS / "tuning.md").read_text("utf-8")
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert {rule.link for rule in RULES} <= {f"docs/tuning.md#{anchor}" for anchor in anchors}


def test_the_demo_raises_none() -> None:
    """What the rules read of a demo's records, which learnt its task: 0.49 to 0.98 of the held-out prompts."""
    lines = (Path(__file__).parents[1] / "data" / "demo-records.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert {record["kind"] for record in records} == {"train", "search", "eval"}
    assert {name for record in records for name in record} >= {name for rule in RULES for name in rule.metrics[:1]} - {
        "overlap/share"
    }
    assert events_of(records, Known(num_responses=16, is_asynchronous=True)) == []


# ---------------------------------------------------------------------------------------------------------------------
# Once until it clears
# ---------------------------------------------------------------------------------------------------------------------

BAD, GOOD = ({"log_pi_mu__right": value} for value in (-9.0, 0.0))


def drift_events(*parts: tuple[int, dict[str, float]]) -> list[str]:
    return [event["event"] for event in events_of([r for count, values in parts for r in train(count, **values)])]


def test_it_is_said_once_while_it_lasts() -> None:
    assert drift_events((100, BAD)) == [ALARM]


def test_it_is_not_said_again_before_it_was_clear_for_a_while() -> None:
    """The measure is a mean over five records, so of eight good ones only the last four make it good."""
    assert drift_events((20, BAD), (8, GOOD), (20, BAD)) == [ALARM]


def test_it_clears_and_may_be_said_again() -> None:
    assert drift_events((20, BAD), (30, GOOD)) == [ALARM, ALARM_CLEARED]
    assert drift_events((20, BAD), (30, GOOD), (20, BAD)) == [ALARM, ALARM_CLEARED, ALARM]


# ---------------------------------------------------------------------------------------------------------------------
# Where it is seen
# ---------------------------------------------------------------------------------------------------------------------


def written(run: Path, records: Sequence[dict[str, Any]], known: Known = PLAIN) -> Records:
    metrics = Metrics(run, alarms=Alarms(known))
    for record in records:
        metrics.write(record["kind"], record["step"], {k: v for k, v in record.items() if k not in ("kind", "step")})
    metrics.close()
    return read_metrics(run)


STEP = {"staleness/counts": {"0": 1}, "staleness/mean": 0.0, "staleness/max": 0, "num_tokens": 1, "tokens": 1}
STEP |= {"reward": 0.0, "loss": 0.0, "step_time": 1.0, "buffer/size": 1}


def test_the_writer_of_records_writes_alarms_among_them_and_the_summary_counts_them(tmp_path: Path) -> None:
    records = written(tmp_path, [*train(8, **STEP, log_pi_mu__right=-3.0), *search(0)])
    [alarm] = [r for r in records if r["kind"] == "event"]
    assert (alarm["event"], alarm["alarm"], alarm["step"]) == (ALARM, DRIFT, 5)
    summary = summarise(records)
    assert (summary["alarms"], summary[f"alarms/{DRIFT}"]) == (1, 1)
    assert summarise(records[:4])["alarms"] == 0


def test_those_that_stand_are_those_that_were_not_cleared(tmp_path: Path) -> None:
    records = written(tmp_path, [*train(20, log_pi_mu__right=-3.0), *train(10, engine_gap__mean=9.0)])
    assert list(raised(records)) == [DRIFT, GAP]
    assert list(raised(written(tmp_path, train(1)))) == [DRIFT, GAP]
    resumed = {"kind": "event", "event": "resumed", "step": 0}
    assert raised([*records, resumed]) == {}


def test_display_and_status_show_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    write_run_config(tmp_path, Config.embedded())
    Activity(tmp_path, "trainer")
    written(tmp_path, train(8, **STEP, log_pi_mu__right=-3.0))
    progress = RunProgress(tmp_path, 100, TaskSettings.headline, from_start=True)
    [record] = progress.update()
    line = told(record, TaskSettings.headline)
    assert line is not None
    assert line.plain.startswith(f"alarm: {DRIFT}. The policy moves away")
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(panel(progress))
    assert record["message"] in console.export_text()
    show_status(tmp_path)
    assert f"alarm: {DRIFT}. {record['message']}" in capsys.readouterr().out
