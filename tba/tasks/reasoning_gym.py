"""Questions of any generator of the reasoning-gym package. Its scorers grade them (`tba/rewards/reasoning_gym.py`).

A generator makes its question i from the seed plus i. Training and held-out questions take their seeds from ranges
that no two question sets share; since small generators repeat themselves, questions are compared as well.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

from tba.config_tasks import ReasoningGymTaskConfig
from tba.extras import install_hint
from tba.rewards.functions import RewardFactory
from tba.tasks.base import Content, Encode, Problem, Task
from tba.types import Prompt, TbaError
from tba.user_code import describe

SEEDS_PER_SET = 10_000_000
"""More than the questions a set may have."""

Entry = dict[str, Any]


def load(config: ReasoningGymTaskConfig, encode: Encode) -> Task:
    skipped: Counter[str] = Counter()
    held_out = _distinct(_generate(config, 2 * config.seed + 1, config.num_eval), (), skipped)
    train = _distinct(_generate(config, 2 * config.seed, config.num_train), held_out, skipped)
    if not train:
        raise TbaError(
            f"every training question of {config.name!r} is among the {len(held_out)} held out: the generator has few "
            "questions; lower task.num_eval, or widen it with task.settings"
        )

    def problems(entries: Mapping[str, Entry], stem: str) -> list[Problem]:
        return [_problem(f"{stem}-{i}", entry, config, encode) for i, entry in enumerate(entries.values())]

    return Task(
        name=config.name,
        train=problems(train, config.name),
        held_out=problems(held_out, f"{config.name}-eval"),
        default_reward=RewardFactory(
            "tba.rewards.reasoning_gym:own_scorer", {"name": config.name, "settings": config.settings}
        ),
        skipped=dict(skipped),
    )


def _generate(config: ReasoningGymTaskConfig, seed_range: int, count: int) -> Iterable[Entry]:
    if find_spec("reasoning_gym") is None:
        raise TbaError(f"the task reasoning-gym needs its package: {install_hint('reasoning-gym')}")
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if config.name not in DATASETS:
        near = difflib.get_close_matches(config.name, DATASETS, n=5, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {len(DATASETS)}, such as chain_sum"
        raise TbaError(f"reasoning-gym has no generator {config.name!r}: {hint}")
    try:
        made = reasoning_gym.create_dataset(config.name, seed=seed_range * SEEDS_PER_SET, size=count, **config.settings)
        return [made[i] for i in range(count)]
    except Exception as error:  # generators check their settings with assertions, and raise what they like
        raise TbaError(f"reasoning-gym's {config.name} refuses task.settings: {describe(error)}") from error


def _distinct(entries: Iterable[Entry], others: Iterable[str], skipped: Counter[str]) -> dict[str, Entry]:
    """By question, without those of `others`."""
    taken, kept = set(others), dict[str, Entry]()
    for entry in entries:
        if entry["question"] in taken:
            skipped["held out as well"] += 1
        elif entry["question"] in kept:
            skipped["the same question as another"] += 1
        else:
            kept[entry["question"]] = entry
    return kept


def _problem(id: str, entry: Entry, config: ReasoningGymTaskConfig, encode: Encode) -> Problem:
    content = _content(entry["question"], config)
    text, tokens = encode(content)
    # The whole entry: scorers read what they need from its metadata, and some questions have no one answer.
    return Problem(Prompt(id, text, tokens), content, {"answer": entry["answer"], "entry": entry})


def _content(question: str, config: ReasoningGymTaskConfig) -> Content:
    asked = f"{question}\n\n{config.instruction}" if config.instruction else question
    if config.prompt_style == "plain":
        return f"{asked}\n"
    system = [] if config.system_prompt is None else [{"role": "system", "content": config.system_prompt}]
    return [*system, {"role": "user", "content": asked}]
