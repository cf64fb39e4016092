"""What became of the responses that a Searcher has begun, in all since its start: its part of the run's ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from tba.rewards.scorer import Scores
from tba.types import Response

Fate = Literal["handed_up", "skipped", "dropped"]


class ResponseCounts:
    """Responses finish, then get their scores, and with these their fate. A response that was cut off may be left out;
    any other without a usable reward has failed, whatever became of the others of its group."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def finish(self, responses: Sequence[Response]) -> None:
        """Their last tokens came."""
        self._counts["finished"] += len(responses)
        self._counts["cut"] += sum(not response.finished for response in responses)

    def settle(self, scores: Scores, fate: Fate) -> None:
        """A group has its scores, and this became of its responses with a reward."""
        num_scored = sum(reward is not None for reward in scores.rewards)
        self._counts["failed"] += len(scores.rewards) - num_scored - scores.num_left_out
        self._counts["left_out"] += scores.num_left_out
        self._counts[fate] += num_scored

    def abort(self, num_unfinished: int) -> None:
        """So many had begun when the run ended."""
        self._counts["aborted"] += num_unfinished

    def values(self, num_unfinished: int, num_pending: int) -> dict[str, int]:
        """The counts as a report has them. `num_unfinished` are being generated now, and `num_pending` wait for their
        scores: with all that has a fate, these are all that were ever begun."""
        counts, unfinished = self._counts, self._counts["aborted"] + num_unfinished
        return {
            "responses/generated": counts["finished"] + unfinished,
            "responses/cut": counts["cut"],
            "responses/unfinished": unfinished,
            "responses/pending": num_pending,
            **{f"responses/{name}": counts[name] for name in ("failed", "left_out", "skipped", "dropped", "handed_up")},
        }

    def state(self) -> dict[str, int]:
        return dict(self._counts)

    def restore(self, state: Mapping[str, int]) -> None:
        self._counts = Counter(state)
