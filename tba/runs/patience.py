"""Early stopping: a run ends when several evaluations in a row were no better than the best one before them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


class Patience:
    """Judges evaluations in the order in which they come, by the number that the task is judged by."""

    def __init__(self, num_evaluations: int, metric_of: Callable[[Mapping[str, Any]], str]) -> None:
        """It ends after `num_evaluations` that were no better; `metric_of` names the number of an evaluation."""
        self._limit = num_evaluations
        self._metric_of = metric_of
        self._metric = ""
        self._best: float | None = None
        self._best_step = 0
        self._num_without = 0
        self._seen: set[tuple[int, int]] = set()

    @property
    def has_ended(self) -> bool:
        return self._num_without >= self._limit

    @property
    def message(self) -> str:
        assert self._best is not None
        return (
            f"{self._num_without} evaluations in a row brought no better {self._metric.replace('_', ' ')} than "
            f"{self._best:.3f} of step {self._best_step}; to go on, resume the run with a larger evaluation.patience"
        )

    def take(self, evaluation: Mapping[str, Any]) -> None:
        """One more evaluation, as its record has it. Without the number that it is judged by it does not count, nor if
        the same version was evaluated before: a resumed run may evaluate the weights that it starts from again."""
        metric = self._metric_of(evaluation)
        value = evaluation.get(metric)
        version = (evaluation.get("epoch", 0), evaluation["version"])
        if value is None or value != value or version in self._seen:
            return
        self._seen.add(version)
        if self._best is None or metric != self._metric or value > self._best:
            self._metric, self._best, self._best_step = metric, value, evaluation["version"]
            self._num_without = 0
        else:
            self._num_without += 1

    def take_all(self, records: Iterable[Mapping[str, Any]]) -> None:
        """The evaluations of a run so far, among its records."""
        for record in records:
            if record["kind"] == "eval":
                self.take(record)
