"""Groups to an Arrow table of the rollout log and back, exactly. One row per trajectory; no files here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tba.buffer.schema import SCHEMA
from tba.types import Group, Prompt, PromptRow, Response, TokenVersions, Trajectory, Version


def warm_up() -> None:
    """pyarrow imports pandas, 0.3 s, when it is first given a list: before the first merge rather than in it."""
    pa.array([0])


RowOf = Callable[[str], PromptRow | None]
"""The row of the data that a prompt comes from, by the prompt's id; None if it is not known."""


def no_row(prompt_id: str) -> None:
    """A `RowOf` that knows of no data."""


def to_table(merge: int, groups: Sequence[Group], merged_at: Version | None = None, row_of: RowOf = no_row) -> pa.Table:
    """One merge as rows. Every group has a trajectory; arrays have the dtypes of `tba.types`, else TypeError."""
    trajectories = list(chain.from_iterable(group.trajectories for group in groups))
    responses = [trajectory.response for trajectory in trajectories]
    versions = [response.version for response in responses]
    group_of_row = pa.array(np.repeat(np.arange(len(groups)), [len(group.trajectories) for group in groups]))
    of_groups: dict[str, Any] = {
        "source": pa.array([group.source for group in groups], pa.string()),
        "serial": pa.array([group.serial for group in groups], pa.int64()),
        "prompt_id": pa.array([group.prompt.id for group in groups], pa.string()),
        "prompt": pa.array([group.prompt.text for group in groups], pa.string()),
        "prompt_tokens": _lists([np.array(group.prompt.tokens, np.int32) for group in groups], np.int32),
        **_for_readers_of_groups(groups, merged_at, row_of),
    }
    columns = {
        "merge": pa.array(np.full(len(trajectories), merge)),
        **{name: column.take(group_of_row) for name, column in of_groups.items()},
        "response": pa.array([response.text for response in responses], pa.string()),
        "tokens": _lists([response.tokens for response in responses], np.int32),
        "token_logprobs": _lists([response.token_logprobs for response in responses], np.float32),
        "reference_token_logprobs": _lists([t.reference_token_logprobs for t in trajectories], np.float32),
        "epoch": pa.array([version.epoch for version in versions], pa.int64()),
        "version": pa.array([version.step for version in versions], pa.int64()),
        "token_versions": _version_lists(responses),
        "reward": pa.array([trajectory.reward for trajectory in trajectories], pa.float64()),
        "reward_parts": _list_array(
            (len(t.reward_parts) for t in trajectories),
            pa.array(list(chain.from_iterable(t.reward_parts for t in trajectories)), pa.float64()),
        ),
        "finished": pa.array([response.finished for response in responses], pa.bool_()),
        "on_policy": pa.array([response.on_policy for response in responses], pa.bool_()),
        "notes": pa.array(list(chain.from_iterable(map(_notes, groups))), pa.string()),
    }
    return pa.table({name: columns[name] for name in SCHEMA.names}, schema=SCHEMA)


def _for_readers_of_groups(groups: Sequence[Group], merged_at: Version | None, row_of: RowOf) -> dict[str, Any]:
    epoch, step = merged_at or (None, None)
    rows = [row_of(group.prompt.id) for group in groups]
    return {
        "merged_epoch": pa.array([epoch] * len(groups), pa.int64()),
        "merged_step": pa.array([step] * len(groups), pa.int64()),
        "reward_names": pa.array([list(group.about.reward_names) for group in groups], pa.list_(pa.string())),
        "columns": pa.array([row and row.columns for row in rows], pa.string()),
        "messages": pa.array([row and row.messages for row in rows], pa.string()),
    }


def _notes(group: Group) -> Sequence[str | None]:
    return group.about.notes or [None] * len(group.trajectories)


def from_table(table: pa.Table) -> Iterator[tuple[int, list[Group]]]:
    """(merge, its groups) in order, equal to what `to_table` was given, without what is for readers only."""
    if not table.num_rows:
        return
    trajectories = list(_trajectories(table))
    merges, serials = _numbers(table, "merge"), _numbers(table, "serial")
    sources: list[Any] = table["source"].to_pylist()
    starts = _starts_of_groups(merges, serials, sources)
    firsts = table.select(["prompt_id", "prompt", "prompt_tokens"]).take(pa.array(starts)).to_pydict()
    prompts = map(Prompt, firsts["prompt_id"], firsts["prompt"], map(tuple, firsts["prompt_tokens"]))
    merge, groups = -1, list[Group]()
    for start, stop, prompt in zip(starts, [*starts[1:], len(trajectories)], prompts, strict=True):
        if merges[start] != merge and groups:
            yield merge, groups
            groups = []
        merge = int(merges[start])
        groups.append(Group(prompt, tuple(trajectories[start:stop]), sources[start], int(serials[start])))
    if groups:
        yield merge, groups


def _starts_of_groups(merges: NDArray[Any], serials: NDArray[Any], sources: list[str]) -> list[int]:
    changes = (np.diff(merges) != 0) | (np.diff(serials) != 0)
    changes |= np.fromiter((a != b for a, b in pairwise(sources)), np.bool_, len(changes))
    return [0, *(np.flatnonzero(changes) + 1).tolist()]


def _trajectories(table: pa.Table) -> Iterator[Trajectory]:
    tokens, logprobs = _arrays(table, "tokens"), _arrays(table, "token_logprobs")
    texts: list[Any] = table["response"].to_pylist()
    finished: list[Any] = table["finished"].to_pylist()
    on_policy: list[Any] = table["on_policy"].to_pylist()
    responses = map(Response, tokens, logprobs, _version_tuples(table), texts, finished, on_policy)
    rewards: list[Any] = table["reward"].to_pylist()
    parts = (tuple(array.tolist()) for array in _arrays(table, "reward_parts"))
    return map(Trajectory, responses, rewards, parts, _arrays(table, "reference_token_logprobs"))


def _lists(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> pa.Array[Any]:
    # Another dtype is refused, as what is read back would differ from what was written.
    values = np.concatenate(arrays, dtype=dtype, casting="equiv")
    return _list_array(map(len, arrays), pa.array(values))


def _version_lists(responses: Sequence[Response]) -> pa.Array[Any]:
    runs = list(chain.from_iterable(response.token_versions for response in responses))
    fields: dict[str, list[Any]] = {
        "epoch": [None if version is None else version.epoch for version, _ in runs],
        "version": [None if version is None else version.step for version, _ in runs],
        "num_tokens": [num for _, num in runs],
    }
    columns: list[Any] = [pa.array(values, pa.int64()) for values in fields.values()]
    structs = pa.StructArray.from_arrays(columns, list(fields))
    return _list_array((len(response.token_versions) for response in responses), structs)


def _list_array(lengths: Iterable[int], values: Any) -> pa.Array[Any]:
    offsets: Any = pa.array(np.cumsum([0, *lengths], dtype=np.int32))
    lists: pa.Array[Any] = pa.ListArray.from_arrays(offsets, values)
    return lists


def _numbers(table: pa.Table, name: str) -> NDArray[Any]:
    return table[name].to_numpy()


def _arrays(table: pa.Table, name: str) -> Iterator[NDArray[Any]]:
    """Each list of a column as its own array: a view would keep the whole table in memory."""
    chunks: list[Any] = table[name].chunks
    for chunk in chunks:
        values, offsets = chunk.values.to_numpy(), chunk.offsets.to_pylist()
        for start, stop in pairwise(offsets):
            yield values[start:stop].copy()


def _version_tuples(table: pa.Table) -> Iterator[TokenVersions]:
    chunks: list[Any] = table["token_versions"].chunks
    for chunk in chunks:
        offsets = chunk.offsets.to_pylist()
        fields: list[list[Any]] = [field.to_pylist() for field in chunk.values.flatten()]
        runs = [(None if step is None else Version(epoch, step), num) for epoch, step, num in zip(*fields, strict=True)]
        for start, stop in pairwise(offsets):
            yield tuple(runs[start:stop])
