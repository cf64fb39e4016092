"""The columns of the rollout log's files, and how the columns of earlier versions of tba become those of today."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tba.types import TbaError

VERSION_KEY = b"tba.schema_version"
"""Where a file's footer says which columns it has. Files of tba 0.1 do not say, and have those of version 1."""
VERSION = 4


def _columns(token_versions: list[str], **others: pa.DataType) -> dict[str, pa.DataType]:
    return {
        "merge": pa.int64(),
        "source": pa.string(),
        "serial": pa.int64(),
        "prompt_id": pa.string(),
        "prompt": pa.string(),
        "prompt_tokens": pa.list_(pa.int32()),
        "response": pa.string(),
        "tokens": pa.list_(pa.int32()),
        "token_logprobs": pa.list_(pa.float32()),
        "reference_token_logprobs": pa.list_(pa.float32()),
        **others,
        "version": pa.int64(),
        "token_versions": pa.list_(pa.struct([pa.field(name, pa.int64()) for name in token_versions])),
        "reward": pa.float64(),
        "reward_parts": pa.list_(pa.float64()),
        "finished": pa.bool_(),
    }


_SCHEMA_2 = pa.schema(_columns(["epoch", "version", "num_tokens"], epoch=pa.int64()))
_SCHEMA_3 = _SCHEMA_2.append(pa.field("on_policy", pa.bool_()))
FOR_READERS: dict[str, pa.DataType] = {
    "merged_epoch": pa.int64(),
    "merged_step": pa.int64(),
    "reward_names": pa.list_(pa.string()),
    "columns": pa.string(),
    "messages": pa.string(),
    "notes": pa.string(),
}
SCHEMA = pa.schema([*_SCHEMA_3, *(pa.field(name, kind) for name, kind in FOR_READERS.items())])
"""`merge` numbers the syncs at which rows came in. `epoch` and `version`, which is a step of the epoch, are the oldest
of `token_versions`; there both are null for tokens that the policy did not write.

The last six columns are for readers, and null in what earlier versions wrote. `merged_epoch` and `merged_step` are the
weights that the Trainer had when the row came in. `reward_names` are the functions that gave `reward_parts`. `columns`
(of the data's row), `messages` (of a prompt that is a chat) and `notes` (of `log_extra`) are JSON, which has the same
type whatever the data are, so that files of all runs can be read together."""
_SCHEMA_1 = pa.schema(_columns(["version", "num_tokens"]))
_SCHEMAS = {1: _SCHEMA_1, 2: _SCHEMA_2, 3: _SCHEMA_3, 4: SCHEMA}


def schema_version(schema: pa.Schema, name: str) -> int:
    """Which version of the columns a file has. TbaError, with the file's name, if it is one that we do not know."""
    version = int((schema.metadata or {}).get(VERSION_KEY, 1))
    if version > VERSION:
        raise TbaError(f"{name} was written by a newer version of tba: update")
    if not schema.equals(_SCHEMAS[version]):
        raise ValueError("its columns are not those of a rollout log")
    return version


def stored_names(version: int, names: Sequence[str]) -> list[str]:
    """Those of the columns of today that files of this version have."""
    return [name for name in names if name in _SCHEMAS[version].names]


def upgraded(table: pa.Table, version: int, names: Sequence[str] = SCHEMA.names) -> pa.Table:
    """A table as it was read, with columns of today, all of them unless `names` are fewer. Before there were epochs,
    all was of epoch 0 and written by the policy. Before version 3 the temperature was not told: all counts as sampled
    at the policy's own."""
    if version == VERSION:
        return table
    columns: dict[str, Any] = {name: table[name] for name in table.column_names}
    columns.setdefault("on_policy", pa.array(np.ones(table.num_rows, np.bool_)))
    columns.setdefault("epoch", pa.array(np.zeros(table.num_rows, np.int64)))
    if version == 1 and "token_versions" in columns:
        columns["token_versions"] = pa.chunked_array(
            [_with_epoch_0(chunk) for chunk in columns["token_versions"].chunks], SCHEMA.field("token_versions").type
        )
    for name, kind in FOR_READERS.items():
        columns.setdefault(name, pa.array([None] * table.num_rows, kind))
    fields = [SCHEMA.field(name) for name in names]
    return pa.table({name: columns[name] for name in names}, schema=pa.schema(fields))


def _with_epoch_0(lists: Any) -> Any:
    steps, counts = lists.values.flatten()
    epochs = pa.array(np.zeros(len(steps), np.int64))
    runs: Any = pa.StructArray.from_arrays([epochs, steps, counts], ["epoch", "version", "num_tokens"])
    return pa.ListArray.from_arrays(lists.offsets, runs)
