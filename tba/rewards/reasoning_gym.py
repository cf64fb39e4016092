"""The scorer of a reasoning-gym generator as a reward function. Made in the reward process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tba.rewards.answer import Completion, extract, response_text
from tba.rewards.functions import RewardFunction

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def own_scorer(name: str, settings: Mapping[str, Any]) -> RewardFunction:
    """What the generator itself gives for an answer: 1 for right, and for some generators something for near."""
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(name, seed=0, size=1, **settings)

    def reasoning_gym_score(
        completions: Sequence[Completion], entry: Sequence[Mapping[str, Any]], **columns: Any
    ) -> list[float]:
        return [_score(dataset, response_text(c), e) for c, e in zip(completions, entry, strict=True)]

    return reasoning_gym_score


def tagged_answer(text: str) -> str | None:
    """The last `<answer>…</answer>`, which may have several lines; else what `####` or `\\boxed{}` marks."""
    tagged = _TAGGED.findall(text)
    return tagged[-1].strip() if tagged else extract(text)


def _score(dataset: Any, text: str, entry: Mapping[str, Any]) -> float:
    answer = tagged_answer(text)
    if answer is None:
        return 0.0  # some scorers have a consolation prize for saying nothing
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:  # scorers raise whatever they meet in an answer they cannot read: that is a wrong answer
        return 0.0
