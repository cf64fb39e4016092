"""Which responses the Trainer shows: of some groups the best and the worst, at a bounded rate."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tba.samples.choose import MAX_TABLES, MAX_TEXT, SampleChooser, sample_of
from tba.testing import make_group
from tba.types import About, Group, PromptRow, Version


def no_row(prompt_id: str) -> None: ...


def group(name: str, *rewards: float) -> Group:
    made = make_group([1, 2], [[1, 2, 5]] * len(rewards), rewards, prompt_id=name, version=3)
    trajectories = [replace(t, reward_parts=(t.reward, 0.0)) for t in made.trajectories]
    return replace(made, trajectories=tuple(trajectories), about=About(("right", "brief")))


def test_the_best_and_the_worst_of_several_prompts() -> None:
    groups = [group("a", 0.2, 0.9, 0.1), group("a", 1.0, 0.0), group("b", 0.5, 0.5), group("c", 3.0, 2.0)]
    shown = SampleChooser(4, 10, no_row).choose(groups, 0)
    assert [(s["prompt_id"], s["reward"]) for s in shown] == [("a", 1.0), ("a", 0.0), ("b", 0.5)]
    assert shown[0]["reward_parts"] == {"right": 1.0, "brief": 0.0}
    assert shown[0]["group"] == {"num_responses": 2, "lowest_reward": 0.0, "mean_reward": 0.5, "highest_reward": 1.0}
    assert len(SampleChooser(1, 10, no_row).choose(groups, 0)) == 1
    assert len(SampleChooser(50, 10, no_row).choose(groups, 0)) == 7


@pytest.mark.parametrize("num_steps", [1, 7, 100, 1_234, 50_000])
def test_a_run_has_a_bounded_number_of_tables(num_steps: int) -> None:
    chooser = SampleChooser(2, num_steps, no_row)
    tables = [step for step in range(num_steps + 1) if chooser.choose([group("a", 0.0, 1.0)], step)]
    assert tables[0] == 0
    assert len(tables) <= MAX_TABLES + 1
    assert len(tables) >= min(num_steps, MAX_TABLES // 2)


def test_a_resumed_run_shows_what_it_would_have_shown() -> None:
    steps = range(0, 1_000, 3)
    whole, before, after = (SampleChooser(2, 1_000, no_row) for _ in range(3))
    wanted = [step for step in steps if whole.choose([group("a", 0.0, 1.0)], step)]
    shown = [step for step in steps if step <= 501 and before.choose([group("a", 0.0, 1.0)], step)]
    after.resume(501)
    shown += [step for step in steps if step > 501 and after.choose([group("a", 0.0, 1.0)], step)]
    assert shown == wanted


def test_none_are_shown_where_none_are_wanted_or_there() -> None:
    assert SampleChooser(0, 10, no_row).choose([group("a", 0.0, 1.0)], 0) == []
    chooser = SampleChooser(4, 10, no_row)
    assert chooser.choose([], 0) == []
    assert chooser.choose([group("a", 0.0, 1.0)], 0)


def test_long_texts_and_long_chats_are_bounded() -> None:
    chat = [{"role": "user", "content": f"turn {i} " + "x" * 500} for i in range(100)]
    row = PromptRow(json.dumps({"tests": "y" * 9_000}), json.dumps(chat))
    made = group("a", 0.0, 1.0)
    long = tuple(replace(t, response=replace(t.response, text="z" * 99_999)) for t in made.trajectories)
    notes = json.dumps({"judge": "n" * 9_000})
    shown = SampleChooser(2, 10, lambda _: row).choose(
        [replace(made, trajectories=long, about=About((), (notes, notes)))], 0
    )
    assert len(json.dumps(shown)) < 2 * 6 * MAX_TEXT
    assert shown[0]["messages"][-1]["content"].startswith("turn 99")


def test_a_sample_knows_its_row_and_its_notes() -> None:
    made = replace(group("a", 0.0, 1.0), about=About(("right", "brief"), ('{"judge": "bad"}', '{"judge": "good"}')))
    sample = sample_of(made, 1, PromptRow('{"answer": 4}', None))
    assert (sample.reward, sample.columns, sample.notes) == (1.0, {"answer": 4}, {"judge": "good"})
    assert sample.version == Version(0, 3)
