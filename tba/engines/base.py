"""What an engine is: it turns prompts into responses, and takes new weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tba.types import Prompt, Response, Version, WeightUpdate


class Engine(Protocol):
    @property
    def version(self) -> Version:
        """Version of the weights it samples from now; `NEVER_PUBLISHED` until the first `load`."""
        ...

    def generate(
        self,
        prompts: Sequence[Prompt],
        num_responses: int,
        *,
        greedy: bool = False,
        temperature: float | None = None,
        full_precision: bool = False,
        between_steps: Callable[[], None] | None = None,
    ) -> list[list[Response]]:
        """`num_responses` responses to each prompt, at the engine's own temperature if none is given.

        An engine may explore with a coarser copy of the weights. With `full_precision` it uses those published.
        `between_steps` is called between decoding steps and may `load`.
        """
        ...

    def load(self, update: WeightUpdate) -> None:
        """Take newer weights, at once: tokens decoded from now on are theirs."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to continue the same stream of samples (JSON-able)."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...
