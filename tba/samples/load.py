"""Reads rows of the rollout log as samples, with what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tba.buffer.browse import GROUP, Piece, group_numbers, holding
from tba.buffer.draws import times_drawn
from tba.learn.epochs import Epochs
from tba.samples.sample import GroupRewards, LoggedSample, Sample, loaded, named_parts
from tba.types import Version

_COLUMNS = (
    *("prompt_id", "prompt", "messages", "response", "token_versions", "epoch", "version", "reward", "reward_parts"),
    *("reward_names", "columns", "notes", "finished", "on_policy", "source", "merged_epoch", "merged_step"),
)


def load(run: Path, pieces: Sequence[Piece], numbers: Sequence[int]) -> list[LoggedSample]:
    """The rows of these numbers, in this order."""
    found = {number: (row, group) for number, row, group in _read(pieces, numbers)}
    merged = [_merged_at(found[number][0]) for number in numbers]
    epochs = Epochs.read(run)
    # A row is drawn by later steps than the one it came in at. Steps of earlier epochs were made again.
    known = all(version is not None and version.epoch == epochs.newest for version in merged)
    after_step = min(version.step for version in merged if version is not None) if known else 0
    times, step = times_drawn(run, numbers, after_step)
    now = Version(epochs.newest, step)
    samples = []
    for number, merged_at, times_trained in zip(numbers, merged, times.tolist(), strict=True):
        sample = _sample(*found[number])
        staleness = None if merged_at is None else epochs.age(sample.version, merged_at)
        age = epochs.age(sample.version, now)
        samples.append(LoggedSample(number, sample, merged_at, staleness, age, times_trained))
    return samples


def _read(pieces: Sequence[Piece], numbers: Sequence[int]) -> Iterator[tuple[int, Mapping[str, Any], GroupRewards]]:
    """The number, the columns and the group's rewards of each row, in the order of the log's pieces."""
    for piece, here in holding(pieces, numbers):
        places = here - piece.first_row
        narrow = piece.read((*GROUP, "reward"))
        groups, rewards = group_numbers(narrow), narrow["reward"].to_numpy()
        of_group = {group: GroupRewards.of(rewards[groups == group].tolist()) for group in set(groups[places].tolist())}
        rows = piece.read(_COLUMNS).take(places).to_pylist()
        for number, row, group in zip(here.tolist(), rows, groups[places].tolist(), strict=True):
            yield number, row, of_group[group]


def _sample(row: Mapping[str, Any], group: GroupRewards) -> Sample:
    return Sample(
        prompt_id=row["prompt_id"],
        prompt=row["prompt"],
        messages=loaded(row["messages"]),
        response=row["response"],
        reward=row["reward"],
        reward_parts=named_parts(row["reward_names"], row["reward_parts"]),
        group=group,
        columns=loaded(row["columns"]),
        notes=loaded(row["notes"]) or {},
        version=Version(row["epoch"], row["version"]),
        num_tokens=sum(run["num_tokens"] for run in row["token_versions"]),
        cut_off=not row["finished"],
        on_policy=row["on_policy"],
        source=row["source"],
    )


def _merged_at(row: Mapping[str, Any]) -> Version | None:
    return None if row["merged_step"] is None else Version(row["merged_epoch"], row["merged_step"])
