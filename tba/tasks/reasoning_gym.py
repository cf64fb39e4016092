"""Questions of any generator of the reasoning-gym package. Its scorers grade them (`tba/rewards/reasoning_gym.py`).

A generator makes its question i from the seed plus i. Training and held-out questions take their seeds from ranges
that no two question sets share; since small generators repeat themselves, questions are compared as well.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any, Literal

from pydantic import Field

from tba.config.section import Table
from tba.config.user_code import describe
from tba.extras import install_hint
from tba.rewards.functions import RewardFactory
from tba.tasks.base import Content, Encode, Problem, Task, TaskSettings
from tba.types import Prompt, TbaError

SEEDS_PER_SET = 10_000_000
"""More than the questions a set may have."""

Entry = dict[str, Any]


class Settings(TaskSettings):
    """Any generator of the reasoning-gym package, graded by its own scorer; needs the `reasoning-gym` extra."""

    kind: Literal["reasoning-gym"] = "reasoning-gym"
    """The kind of task."""
    name: str
    """The name of the generator, such as `chain_sum`."""
    settings: Table = Field({})
    """The generator's own settings, as a TOML table or as `--task.settings.max-terms 4`. A text that is valid JSON is
    read as JSON."""
    instruction: str = "Give the final answer between <answer> and </answer>."
    """Text that follows every question. It may be empty: `####` and `\\boxed{}` mark an answer too."""
    prompt_style: Literal["chat", "plain"] = "chat"
    """How a question is put to the model: `chat` uses the model's chat template, `plain` is the text alone."""
    system_prompt: str | None = None
    """A system message that comes before every chat prompt."""
    num_train: int = Field(4096, ge=1, le=10_000_000)
    """Number of training questions to generate. Questions that repeat another one, or a held-out one, are then left
    out."""
    num_eval: int = Field(256, ge=1, le=10_000_000)
    """Number of held-out questions to generate, from seeds that no training set uses."""
    seed: int = Field(0, ge=0, le=1_000_000)
    """Seed from which training and held-out questions are generated."""

    def load(self, encode: Encode) -> Task:
        skipped: Counter[str] = Counter()
        held_out = _distinct(_generate(self, 2 * self.seed + 1, self.num_eval), (), skipped)
        train = _distinct(_generate(self, 2 * self.seed, self.num_train), held_out, skipped)
        if not train:
            raise TbaError(
                f"every training question of {self.name!r} is among the {len(held_out)} held out: the generator has "
                "few questions; lower task.num_eval, or widen it with task.settings"
            )

        def problems(entries: Mapping[str, Entry], stem: str) -> list[Problem]:
            return [_problem(f"{stem}-{i}", entry, self, encode) for i, entry in enumerate(entries.values())]

        return Task(
            name=self.name,
            train=problems(train, self.name),
            held_out=problems(held_out, f"{self.name}-eval"),
            default_reward=RewardFactory(
                "tba.rewards.reasoning_gym:own_scorer", {"name": self.name, "settings": self.settings}
            ),
            skipped=dict(skipped),
        )


def _generate(config: Settings, seed_range: int, count: int) -> Iterable[Entry]:
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


def _problem(id: str, entry: Entry, config: Settings, encode: Encode) -> Problem:
    content = _content(entry["question"], config)
    text, tokens = encode(content)
    # The whole entry: scorers read what they need from its metadata, and some questions have no one answer.
    return Problem(Prompt(id, text, tokens), content, {"answer": entry["answer"], "entry": entry})


def _content(question: str, config: Settings) -> Content:
    asked = f"{question}\n\n{config.instruction}" if config.instruction else question
    if config.prompt_style == "plain":
        return f"{asked}\n"
    system = [] if config.system_prompt is None else [{"role": "system", "content": config.system_prompt}]
    return [*system, {"role": "user", "content": asked}]
