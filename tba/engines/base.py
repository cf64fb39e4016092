"""What an engine is: requests go in, finished ones come out, and newer weights may be taken between any two steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tba.types import Prompt, Response, Version, WeightUpdate


@dataclass(frozen=True, slots=True)
class Request:
    """Responses to one prompt that are wanted."""

    id: int
    """Chosen by whoever submits it. No two requests in an engine have the same."""
    prompt: Prompt
    num_responses: int
    temperature: float | None = None
    """None: the engine's own."""
    greedy: bool = False
    """Always the likeliest token."""
    full_precision: bool = False
    """An engine may explore with a coarser copy of the weights, and leave unlikely tokens out. This asks for the policy
    itself: the weights that were published, and all tokens."""
    seed: int | None = None
    """With the engine's own seed it decides what is sampled. None: no two requests are sampled alike."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request whose last response is done."""

    id: int
    responses: list[Response]


class Engine(Protocol):
    """Every request that is submitted finishes once or is aborted. Every token has the version that wrote it."""

    @property
    def version(self) -> Version:
        """Version of the weights it samples from now; `NEVER_PUBLISHED` until the first `load`."""
        ...

    @property
    def num_running(self) -> int:
        """Responses that have begun and are not done."""
        ...

    @property
    def num_waiting(self) -> int:
        """Responses that were submitted and have not begun."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request. Responses begin in the order of submission."""
        ...

    def collect(self, num_rows: int) -> list[Finished]:
        """One step: responses begin until `num_rows` are running, and each that runs gets a token.

        Up to an eighth more may run, where an engine gains from letting all responses to a prompt begin together.
        Returns the requests that this finished. With 0 rows none begins, and those that run go on. Without anything to
        do it returns at once.
        """
        ...

    def load(self, update: WeightUpdate) -> None:
        """Take newer weights, at once: tokens decoded from now on are theirs. Responses that run go on with them."""
        ...

    def abort(self, ids: Sequence[int]) -> None:
        """Drop these requests; those that the engine does not have are ignored."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to continue the same stream of samples (JSON-able). Requests are not part of it."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...


def stream(
    engine: Engine,
    prompts: Sequence[Prompt],
    num_responses: int,
    *,
    num_rows: int | None = None,
    greedy: bool = False,
    temperature: float | None = None,
    full_precision: bool = False,
    seeds: Sequence[int] | None = None,
) -> Iterator[tuple[int, list[Response]]]:
    """The responses to each prompt as soon as its last is done, with the number of the prompt in `prompts`.

    About `num_rows` responses run at a time, as `Engine.collect` takes it; None: all of them. `seeds` has a number for
    each prompt. The engine must be idle, and nobody else may use it until the last is taken.
    """
    if engine.num_running or engine.num_waiting:
        raise RuntimeError("the engine has other requests")
    for number, prompt in enumerate(prompts):
        seed = None if seeds is None else seeds[number]
        engine.submit(Request(number, prompt, num_responses, temperature, greedy, full_precision, seed))
    rows = len(prompts) * num_responses if num_rows is None else num_rows
    try:
        while engine.num_running or engine.num_waiting:
            for done in engine.collect(max(1, rows)):
                yield done.id, done.responses
    finally:
        engine.abort(range(len(prompts)))


def generate(engine: Engine, prompts: Sequence[Prompt], num_responses: int, **options: Any) -> list[list[Response]]:
    """The responses to each prompt, in the order of the prompts. Options are those of `stream`."""
    found = dict(stream(engine, prompts, num_responses, **options))
    return [found[number] for number in range(len(prompts))]
