"""Calls reward functions once on made-up responses, so that what is wrong with them shows before a run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tba.rewards.process import DiedStartingError, LostProcessError, RewardProcess
from tba.rewards.scoring import Failure, ScoreRequest
from tba.types import TbaError

MADE_UP = ("This response was made up to try the reward function.", "So was this one. The answer is 1.")
"""Two, so that one number for all of them is noticed."""


def check_by_calling(
    functions: Sequence[str],
    prompt: str | Sequence[Mapping[str, str]],
    columns: Mapping[str, Any],
    *,
    timeout_seconds: float,
    start_seconds: float,
    num_steps: int,
) -> None:
    """TbaError if a function cannot score two made-up responses to this prompt. The functions run in a process of their
    own, with the time limits of a run."""
    ids = tuple(tuple(range(len(text.split()))) for text in MADE_UP)
    request = ScoreRequest(
        prompt_id="made up",
        prompt=prompt,
        completions=MADE_UP,
        completion_ids=ids,
        finished=(True,) * len(MADE_UP),
        columns=columns,
        conversational=not isinstance(prompt, str),
    )
    # Spawned: the server that forks the processes of a run is to be started by the launcher, with torch in it.
    process = RewardProcess(functions, (1.0,) * len(functions), timeout_seconds, num_steps, forked=False)
    try:
        process.wait_until_ready(start_seconds)
        failures: Sequence[Failure] = process.score(request).failures
    except DiedStartingError as error:
        raise TbaError(str(error)) from None
    except LostProcessError as loss:
        failures = [Failure(request.prompt_id, loss.function, loss.kind, loss.message)]
    finally:
        process.kill()
    if failures:
        raise TbaError(
            f"reward function {failures[0].function} fails on made-up responses to the first prompt: "
            f"{failures[0].message}; fix it, or skip this check with reward.dry_call = false"
        )
