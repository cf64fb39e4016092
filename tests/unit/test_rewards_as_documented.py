"""Reward functions of TRL's documentation and of ours run unchanged, on text prompts and on chats."""

from __future__ import annotations

import asyncio
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tba.rewards.functions import STANDARD_KEYWORDS
from tba.rewards.scorer import Scorer
from tba.rewards.scoring import GroupScoring, ScoreRequest, Scores, TrainerState
from tba.tasks.base import Problem
from tba.testing import make_response
from tba.types import NEVER_PUBLISHED, Prompt

PAGE = Path(__file__).parents[2] / "docs" / "data-and-rewards.md"


def asked(*texts: str, chat: bool = False, step: int = 0, **columns: Any) -> ScoreRequest:
    prompt = [{"role": "user", "content": "2+2="}] if chat else "2+2="
    ids = tuple(tuple(range(len(text))) for text in texts)
    return ScoreRequest("p", prompt, texts, ids, (True,) * len(texts), columns, chat, step)


def scored(function: Any, request: ScoreRequest, num_steps: int = 100) -> tuple[float | None, ...]:
    scoring = GroupScoring({"reward": function}, [1.0], request, num_steps)
    scoring.begin()
    if scoring.is_waiting:
        asyncio.run(scoring.finish())
    scores: Scores = scoring.scores()
    assert scores.failures == ()
    return scores.rewards


# ---------------------------------------------------------------------------------------------------------------------
# As in TRL's documentation of custom reward functions
# ---------------------------------------------------------------------------------------------------------------------


def longer_in_tokens(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def longer_by_the_older_name(completions_ids, **kwargs):
    return [float(len(ids)) for ids in completions_ids]


def longer_in_characters(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def think_and_answer(completions, **kwargs):
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(pattern, content) else 0.0 for content in contents]


def only_code(prompts, completions, task, **kwargs):
    return [float("def" in c) if t == "code" else None for _, c, t in zip(prompts, completions, task, strict=True)]


def boxed(completions, ground_truth, **kwargs):
    matches = [re.search(r"\\boxed\{(.*?)\}", completion) for completion in completions]
    contents = [match.group(1) if match else "" for match in matches]
    return [1.0 if c == gt else 0.0 for c, gt in zip(contents, ground_truth, strict=True)]


def only_maths(prompts, completions, task, **kwargs):
    return [float("4" in c) if t == "math" else None for _, c, t in zip(prompts, completions, task, strict=True)]


async def waiting(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    return [1.0 if completion else 0.0 for completion in completions]


def by_progress(completions, trainer_state, **kwargs):
    return [trainer_state.global_step / trainer_state.max_steps for _ in completions]


def noting(completions, log_extra, log_metric, **kwargs):
    log_extra("length", [len(completion) for completion in completions])
    log_metric("count", len(completions))
    return [1.0 for _ in completions]


def noting_if_asked(completions, solution, log_extra=None, log_metric=None, **kwargs):
    found = [completion[0]["content"] == truth for completion, truth in zip(completions, solution, strict=True)]
    if log_extra:
        log_extra("solution", list(solution))
    if log_metric:
        log_metric("accuracy", sum(found) / len(found))
    return [float(right) for right in found]


def by_epoch(completions, trainer_state, **kwargs):
    return [trainer_state.epoch for _ in completions]


THOUGHT = "<think>2 and 2 is 4.</think><answer>4</answer>"


@pytest.mark.parametrize(
    ("function", "request_", "rewards"),
    [
        (longer_in_tokens, asked("ab", "abcd"), (2.0, 4.0)),
        (longer_in_tokens, asked("ab", "abcd", chat=True), (2.0, 4.0)),
        (longer_by_the_older_name, asked("ab", "abcd"), (2.0, 4.0)),
        (longer_in_characters, asked(" blue.", " in the sky."), (6.0, 12.0)),
        (think_and_answer, asked(THOUGHT, "It is 4.", chat=True), (1.0, 0.0)),
        (boxed, asked(r"\boxed{2}", r"\boxed{6}", ground_truth="2"), (1.0, 0.0)),
        (only_maths, asked("4", "5", task="math"), (1.0, 0.0)),
        (only_maths, asked("4", "5", task="code"), (None, None)),
        (waiting, asked("a", ""), (1.0, 0.0)),
        (waiting, asked("a", chat=True), (1.0,)),
        (by_progress, asked("a", step=25), (0.25,)),
        (by_progress, asked("a", step=50, chat=True), (0.5,)),
        (noting, asked("a", "b"), (1.0, 1.0)),
        (noting_if_asked, asked("4", "5", chat=True, solution="4"), (1.0, 0.0)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_functions_as_trl_documents_them(function: Any, request_: ScoreRequest, rewards: tuple[float, ...]) -> None:
    assert scored(function, request_) == rewards


def test_several_functions_add_up_and_one_that_does_not_apply_counts_for_nothing() -> None:
    """Of one task each, and an asynchronous one for both."""
    functions = {"maths": only_maths, "code": only_code, "waiting": waiting}
    for task, text, rewards in (("math", "4", (2.5, 0.5)), ("code", "def f", (3.5, 0.5)), ("other", "4", (0.5, 0.5))):
        scoring = GroupScoring(functions, [2.0, 3.0, 0.5], asked(text, "no", task=task))
        scoring.begin()
        asyncio.run(scoring.finish())
        scores = scoring.scores()
        assert scores.rewards == rewards
        assert [math.isnan(part) for part in scores.parts[0]] == [task != "math", task != "code", False]


def test_what_functions_note_is_kept() -> None:
    scoring = GroupScoring({"right": noting_if_asked}, [1.0], asked("4", "5", chat=True, solution="4"))
    scoring.begin()
    scores = scoring.scores()
    assert scores.extras == {"solution": ("4", "4")}
    assert scores.metrics == {"right/accuracy": 0.5}


def test_what_trainer_state_does_not_have_is_told_with_what_it_has() -> None:
    scoring = GroupScoring({"reward": by_epoch}, [1.0], asked("a"))
    scoring.begin()
    [failure] = scoring.scores().failures
    assert "trainer_state has global_step and max_steps, and no 'epoch'" in failure.message


def test_functions_that_come_with_trl() -> None:
    rewards = pytest.importorskip("trl.rewards")
    assert scored(rewards.think_format_reward, asked("<think>\na\n</think>\nb", "b", chat=True)) == (1.0, 0.0)
    overlong = rewards.get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    assert scored(overlong, asked("x" * 90, "x" * 101, "x")) == (-0.5, -1.0, 0.0)


def test_the_step_is_that_of_the_newest_weights_and_0_before_any() -> None:
    problem = Problem(Prompt("p", "", (1,)), "2+2=", {})
    old, new = make_response([1], version=3), make_response([1], version=7)
    never = make_response([1], version=NEVER_PUBLISHED)
    assert problem.request([old, new]).step == 7
    assert problem.request([never]).step == 0


def test_a_reward_process_is_told_the_steps_of_the_run() -> None:
    with Scorer([f"{__file__}:by_progress"], (), 30.0, num_steps=50) as scorer:
        [scores] = scorer.score([asked("a", step=10)])
    assert scores.rewards == (0.2,)


# ---------------------------------------------------------------------------------------------------------------------
# As our page shows them
# ---------------------------------------------------------------------------------------------------------------------


def shown() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for source in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec(source, made)
    return made


@pytest.mark.parametrize(
    ("name", "chat"),
    [("my_reward", False), ("my_reward", True), ("my_trl_reward", True), ("my_plain_reward", False)],
)
def test_functions_of_the_page_know_right_from_wrong(name: str, chat: bool) -> None:
    assert scored(shown()[name], asked("it is 4", "it is 5", chat=chat, answer="4")) == (1.0, 0.0)


def test_other_functions_of_the_page_run_too() -> None:
    page = shown()
    assert scored(page["shorter_and_shorter"], asked("x" * 50, step=50)) == (-0.25,)
    assert scored(page["judged"], asked("a", "", chat=True)) == (1.0, None)


def test_the_page_names_all_that_a_function_may_ask_for() -> None:
    table = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    named = set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in table)))
    assert set(STANDARD_KEYWORDS) <= named
    assert set(TrainerState.__dataclass_fields__) <= set(re.findall(r"`(\w+)`", " ".join(table)))
