"""What every section of the settings is: frozen, with nothing unknown in it, explained field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def _check_device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise PydanticCustomError("device", "is no device: use auto, cpu, cuda or cuda:1")
    return value


Device = Annotated[str, AfterValidator(_check_device)]
"""The name of a device. Whether the machine has it, `tba/policy/placement.py` says."""


def _auto_or_count(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    if isinstance(value, str) and value.isdecimal() and int(value) >= 1:
        return int(value)
    raise PydanticCustomError("count", "use auto, or a whole number of at least 1")


AutoCount = Annotated[int | Literal["auto"], BeforeValidator(_auto_or_count)]
"""A number that is found out when a run starts, unless it is given."""


def _cut_off(value: Any) -> Any:
    try:
        return value if value in ("score", "drop") else float(value)
    except (TypeError, ValueError):
        raise PydanticCustomError("cut_off", "use score, drop, or a number") from None


CutOff = Annotated[Literal["score", "drop"] | float, BeforeValidator(_cut_off)]
"""What becomes of responses that are cut off; a number is their reward."""


def _comma_list(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


StringList = Annotated[tuple[str, ...], BeforeValidator(_comma_list)]
FloatList = Annotated[tuple[float, ...], BeforeValidator(_comma_list)]
DeviceList = Annotated[tuple[Device, ...], BeforeValidator(_comma_list)]


def _texts(value: Any) -> Any:
    """One text as it is, blanks and commas included; several as a JSON list on the command line."""
    if not isinstance(value, str):
        return value
    several = _json(value) if value.startswith("[") else None
    if isinstance(several, str) and value.startswith('["'):
        raise PydanticCustomError("texts", 'begins like a JSON list and is none: write \'["one", "two"]\', in quotes')
    return several if isinstance(several, list) else [value] if value else []


def _table(value: Any) -> Any:
    """A table may be written as JSON on the command line, and so may each of its values (`--task.settings.size 3`)."""
    if isinstance(value, str):
        return _json(value)
    return {key: _json(part) for key, part in value.items()} if isinstance(value, Mapping) else value


def _json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return value


TextList = Annotated[tuple[str, ...], BeforeValidator(_texts)]
Table = Annotated[dict[str, Any], BeforeValidator(_table)]
