"""What a task is: its settings, the problems they make, and how a model is judged on them. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from tba.config.section import Section
from tba.rewards.functions import RewardSpec
from tba.rewards.scoring import ScoreRequest
from tba.types import NEVER_PUBLISHED, Prompt, Response

if TYPE_CHECKING:  # settings are parsed in processes that never load torch
    from tba.config.search import EvaluationConfig
    from tba.config.settings import Config
    from tba.evaluations.base import Evaluator, Parts

Content = str | list[dict[str, str]]
"""A prompt as written: plain text, or chat messages of `role` and `content`."""


class Encode(Protocol):
    """Turns written content into the text and token ids the model reads (chat template included)."""

    def __call__(self, content: Content) -> tuple[str, tuple[int, ...]]: ...


def not_encoded(content: Content) -> tuple[str, tuple[int, ...]]:
    """An `Encode` for reading and checking rows where there is no tokenizer. Every prompt seems to have one token."""
    return "", (0,)


@dataclass(frozen=True)
class Problem:
    """A prompt, and the columns a reward function may ask for by name (`answer`, `level`, …)."""

    prompt: Prompt
    content: Content
    """The prompt as its author wrote it: what reward functions see."""
    columns: Mapping[str, Any]
    demonstration: str | None = None
    """A response to learn from or to be compared with, exactly as the model should write it; None: there is none."""

    @property
    def conversational(self) -> bool:
        """True if the prompt is chat messages: completions then reach rewards as messages too (TRL's rule)."""
        return not isinstance(self.content, str)

    def request(self, responses: Sequence[Response]) -> ScoreRequest:
        """Responses to this problem as a question to the reward process."""
        return ScoreRequest(
            prompt_id=self.prompt.id,
            prompt=self.content,
            completions=tuple(r.text for r in responses),
            completion_ids=tuple(tuple(r.tokens.tolist()) for r in responses),
            finished=tuple(r.finished for r in responses),
            columns=self.columns,
            conversational=self.conversational,
            step=max((r.newest_version.step for r in responses if r.newest_version != NEVER_PUBLISHED), default=0),
        )


@dataclass(frozen=True)
class Task:
    """A named set of problems with its default reward. Plain data: scoring happens in a reward process."""

    name: str
    train: Sequence[Problem]
    held_out: Sequence[Problem]
    default_reward: RewardSpec | None
    """The reward used unless the user names another."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Rows left out: why, and how many."""
    observers: tuple[RewardSpec, ...] = ()
    """Functions called like rewards beside the default one: they weigh nothing and appear in the metrics."""
    breakdown: tuple[str, ...] = ()
    """Columns by whose values an evaluation breaks its accuracy down."""
    notes: tuple[str, ...] = ()
    """How the data were read, where the user should know: sentences."""


@dataclass(frozen=True)
class Beside:
    """A number of an evaluation that stands beside the one it is judged by."""

    metric: str
    """Its name in the evaluation's values."""
    name: str
    """Its name in `summary.json`, which gets `NAME_first` and `NAME_last`."""
    label: str = ""
    """Its name on the screen; empty: it is not shown there."""
    form: str = ".3f"


@dataclass(frozen=True)
class Headline:
    """What a model is judged by on a task."""

    metric: str = "accuracy"
    """The number's name in an evaluation's values. Its standard error, if there is one, is `METRIC_se`."""
    beside: tuple[Beside, ...] = ()
    """Numbers that it must not be read without."""
    eval_flags: str = ""
    """Flags of `tba eval` that tell more about a trained model."""

    @property
    def summary_name(self) -> str:
        """Its name in `summary.json`, where `reward` is that of new responses."""
        return "held_out_reward" if self.metric == "reward" else self.metric

    def metric_of(self, evaluation: Mapping[str, Any]) -> str:
        """What this evaluation is judged by: the mean reward where the task's own number could not be measured."""
        return self.metric if evaluation.get(self.metric) is not None else "reward"


@dataclass(frozen=True)
class NamedModel:
    """A model that settings name, to be looked for before a run starts."""

    setting: str
    path: str
    is_reward_model: bool = False
    """True: a sequence classifier with one output. False: any model."""


class TaskSettings(Section):
    """The settings of one kind of task, and all that sets this kind apart from others.

    A kind needs a default for `kind`, a docstring of one line for `tba tasks`, and `load`.
    """

    kind: str
    headline: ClassVar[Headline] = Headline(eval_flags="--evaluation.num-samples 16")
    reward_is_random: ClassVar[bool] = False
    """Whether the task's own reward gives equal responses different numbers. One that is sampled with a seed of the
    response, as a red-teaming victim's replies are, does not."""

    def load(self, encode: Encode) -> Task:
        """Read or generate the problems. TbaError, in one line, for data that cannot be used."""
        raise NotImplementedError

    def evaluator(self, parts: Parts) -> Evaluator:
        """What measures a model on held-out problems: by default greedy accuracy and sampled pass@k."""
        from tba.evaluations.accuracy import AccuracyEvaluator

        return AccuracyEvaluator(
            parts.engine,
            parts.scorer,
            parts.task.held_out[: parts.settings.num_prompts],
            num_samples=parts.settings.num_samples,
            success_reward=parts.settings.success_reward,
            prompts_per_batch=parts.settings.prompts_per_batch,
            breakdown=parts.task.breakdown,
        )

    def check(self, config: Config) -> None:
        """ValueError if settings of other sections do not go with this task. It may read them, and nothing else."""

    def models(self, evaluation: EvaluationConfig, *, to_train: bool) -> list[NamedModel]:
        """The models that training on this task, or evaluating alone, loads beside the policy and the reward model."""
        return []

    def as_response(self, text: str) -> str:
        """A text of the data, such as the chosen one of a pair, exactly as the model would write it after a prompt."""
        return text

    def without_held_out(self) -> Self:
        """The same task with every row to train on, for commands that hold out rows by rules of their own."""
        whole = {"num_eval": 0, "eval_data": None}
        return self.model_copy(update={name: value for name, value in whole.items() if name in type(self).model_fields})
