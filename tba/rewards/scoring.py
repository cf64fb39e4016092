"""Scores one group: calls the reward functions, checks what they return and adds it up. Starts no process.

A response whose reward cannot be trusted gets None and is dropped by the caller; a failure says why. Nothing a
reward function returns or raises stops the others.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tba.config.user_code import describe
from tba.rewards.functions import RewardFunction, call

FailureKind = Literal["raised", "timeout", "not_finite", "wrong_length", "died"]


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One prompt, its completions, and the columns of its row."""

    prompt_id: str
    prompt: str | Sequence[Mapping[str, str]]
    """What the functions see in `prompts`: text, or chat messages."""
    completions: tuple[str, ...]
    completion_ids: tuple[tuple[int, ...], ...]
    finished: tuple[bool, ...]
    """False: cut off at the length limit, without an end-of-sequence token."""
    columns: Mapping[str, Any]
    conversational: bool
    """True: completions reach the functions as lists of one assistant message."""
    step: int = 0
    """Of the newest weights that made any of the completions."""


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Where a run stands, for rewards that change as it goes on. The names are TRL's."""

    global_step: int
    """The optimizer step whose weights made the completions."""
    max_steps: int
    """The steps of the whole run."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trainer_state has global_step and max_steps, and no {name!r}")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why completions of a group were dropped. At most one for each function."""

    prompt_id: str
    function: str
    """Name as in the metrics; empty if the process was lost before any function ran."""
    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Scores:
    """The rewards of one request, in the order of its completions."""

    rewards: tuple[float | None, ...]
    """The weighted sum; None: drop this one, because a function failed on it or none applied to it."""
    parts: tuple[tuple[float, ...], ...]
    """For each completion what each function gave, unweighted; NaN where it gave None or failed."""
    failures: tuple[Failure, ...]
    extras: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """What functions noted with `log_extra`: by column, one plain value for each completion."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What functions reported with `log_metric`, and the means of extras that are numbers, as `function/name`."""
    num_left_out: int = 0
    """How many of those without a reward lack it because they were cut off by the length limit, and no failure."""

    def with_cut_off_score(self, finished: Sequence[bool], score: float) -> Scores:
        """Completions that were cut off get this reward in place of their own; those whose reward failed do not."""
        pairs = zip(self.rewards, finished, strict=True)
        return replace(self, rewards=tuple(r if ended or r is None else score for r, ended in pairs))

    def without_cut_off(self, finished: Sequence[bool]) -> Scores:
        """Completions that were cut off have no reward, so that they are left out of their group."""
        pairs = zip(self.rewards, finished, strict=True)
        rewards = tuple(r if ended else None for r, ended in pairs)
        return replace(self, rewards=rewards, num_left_out=sum(not ended for ended in finished))


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What one function made of a group."""

    values: tuple[float, ...]
    """NaN where it gave None or failed."""
    trusted: tuple[bool, ...]
    """False: the completion must be dropped."""
    failure: Failure | None = None


class GroupScoring:
    """The scoring of one group: `begin` calls every function, `finish` awaits what `async` ones returned, `scores` adds
    up. Functions are called outside of any event loop, so one that is not `async` may use `asyncio.run` itself."""

    def __init__(
        self,
        functions: Mapping[str, RewardFunction],
        weights: Sequence[float],
        request: ScoreRequest,
        num_steps: int = 0,
    ) -> None:
        """`num_steps`: of the run, as functions are told."""
        self._functions = functions
        self._weights = weights
        self._request = request
        self._state = TrainerState(request.step, num_steps)
        self._extras: dict[str, tuple[Any, ...]] = {}
        self._metrics: dict[str, float] = {}
        self._verdicts: dict[str, _Verdict] = {}
        self._awaited: dict[str, Awaitable[Any]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to `finish`."""
        return bool(self._awaited)

    def begin(self, announce: Callable[[str], None] = lambda name: None) -> None:
        """Call every function. `announce` hears the name of each before it runs."""
        for name, function in self._functions.items():
            announce(name)
            try:
                # Built anew for each function: one that edits its lists cannot mislead the next.
                keywords = {**keywords_for(self._request), "trainer_state": self._state, **self._loggers(name)}
                result = call(function, keywords)
            except Exception as error:  # the user's code: whatever it raises costs this group and no more
                self._verdicts[name] = self._failed(name, "raised", describe(error))
                continue
            if inspect.isawaitable(result):
                self._awaited[name] = result
            else:
                self._verdicts[name] = self._checked(name, result)

    async def finish(self, seconds: float | None = None) -> None:
        """Await the functions that are not done, together. Those that take longer than `seconds` have failed."""
        tasks = {name: asyncio.ensure_future(_awaited(result)) for name, result in self._awaited.items()}
        await asyncio.wait(tasks.values(), timeout=seconds)
        for name, task in tasks.items():
            if not task.done():
                task.cancel()
                self._verdicts[name] = self._failed(name, "timeout", f"took more than {seconds:.3g} s")
            elif task.cancelled():
                self._verdicts[name] = self._failed(name, "raised", "CancelledError: the function cancelled itself")
            elif (error := task.exception()) is not None:
                self._verdicts[name] = self._failed(name, "raised", describe(error))
            else:
                self._verdicts[name] = self._checked(name, task.result())
        self._awaited = {}

    def scores(self) -> Scores:
        """The weighted sums, once every function is done."""
        request = self._request
        verdicts = [self._verdicts[name] for name in self._functions]
        failures = [verdict.failure for verdict in verdicts if verdict.failure is not None]
        # Transposed by index, so that a group without completions is not a special case.
        indices = range(len(request.completions))
        parts = tuple(tuple(verdict.values[i] for verdict in verdicts) for i in indices)
        trusted = [all(verdict.trusted[i] for verdict in verdicts) for i in indices]
        totals = [_total(part, self._weights) if ok else None for part, ok in zip(parts, trusted, strict=True)]
        if any(total is not None and not math.isfinite(total) for total in totals):
            which = "+".join(self._functions)
            failures.append(Failure(request.prompt_id, which, "not_finite", "the weighted sum overflows"))
        rewards = tuple(total if total is not None and math.isfinite(total) else None for total in totals)
        return Scores(rewards, parts, tuple(failures), self._extras, self._metrics)

    def _loggers(self, name: str) -> dict[str, Callable[..., None]]:
        count = len(self._request.completions)

        def log_extra(column: str, values: Sequence[Any]) -> None:
            if len(values) != count:
                raise ValueError(f"log_extra({column!r}) has {len(values)} values for {count} completions")
            self._extras[column] = tuple(values)
            log_metric(column, sum(map(_as_float, values)) / max(1, count))  # NaN unless all are numbers: no metric

        def log_metric(key: str, value: float) -> None:
            if math.isfinite(number := _as_float(value)):
                self._metrics[f"{name}/{key}"] = number

        return {"log_extra": log_extra, "log_metric": log_metric}

    def _checked(self, name: str, result: Any) -> _Verdict:
        count = len(self._request.completions)
        if isinstance(result, str | Mapping) or not isinstance(result, Iterable):
            what = f"returned {type(result).__name__}, not a list of {count} numbers"
            return self._failed(name, "wrong_length", what)
        try:
            returned = list(result)
        except Exception as error:  # the user's iterator
            return self._failed(name, "raised", describe(error))
        if len(returned) != count:
            return self._failed(
                name, "wrong_length", f"returned {_counted(len(returned), 'value')} for {_counted(count, 'completion')}"
            )
        return _check_values(name, self._request.prompt_id, returned)

    def _failed(self, name: str, kind: FailureKind, message: str) -> _Verdict:
        count = len(self._request.completions)
        return _Verdict((math.nan,) * count, (False,) * count, Failure(self._request.prompt_id, name, kind, message))


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def all_dropped(request: ScoreRequest, num_functions: int, failure: Failure) -> Scores:
    """The scores of a group that was lost as a whole."""
    count = len(request.completions)
    return Scores((None,) * count, ((math.nan,) * num_functions,) * count, (failure,))


def keywords_for(request: ScoreRequest) -> dict[str, Any]:
    """TRL's keywords and ours that are lists, with one entry for each completion; columns are repeated."""
    count = len(request.completions)
    completions: list[Any] = list(request.completions)
    if request.conversational:
        completions = [[{"role": "assistant", "content": text}] for text in request.completions]
    return {
        **{name: [value] * count for name, value in request.columns.items()},
        "prompts": [request.prompt] * count,
        "completions": completions,
        "texts": list(request.completions),
        "completion_ids": [list(ids) for ids in request.completion_ids],
        "completions_ids": [list(ids) for ids in request.completion_ids],
        "finished": list(request.finished),
    }


def _check_values(name: str, prompt_id: str, returned: Sequence[Any]) -> _Verdict:
    values = tuple(math.nan if value is None else _as_float(value) for value in returned)
    trusted = tuple(value is None or math.isfinite(number) for value, number in zip(returned, values, strict=True))
    bad = [i for i, ok in enumerate(trusted) if not ok]
    if not bad:
        return _Verdict(values, trusted)
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    message = f"gave {_short(returned[bad[0]])} for completion {bad[0]}{more}: not a finite number"
    finite = tuple(value if math.isfinite(value) else math.nan for value in values)
    return _Verdict(finite, trusted, Failure(prompt_id, name, "not_finite", message))


def _as_float(value: Any) -> float:
    """Any number as a float: bool, int, NumPy and torch scalars. NaN for what is not a number."""
    if isinstance(value, str | bytes):
        return math.nan
    try:
        return float(value)
    except Exception:  # the user's object: its conversion may raise anything
        return math.nan


def _short(value: Any) -> str:
    try:
        return " ".join(repr(value).split())[:80]
    except Exception:  # the user's object again
        return f"a {type(value).__name__}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _total(part: Sequence[float], weights: Sequence[float]) -> float | None:
    """The weighted sum of what applies; None if nothing does."""
    terms = [weight * value for value, weight in zip(part, weights, strict=True) if not math.isnan(value)]
    return sum(terms) if terms else None
