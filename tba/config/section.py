"""What every section of the settings is: frozen, with nothing unknown in it, explained field by field."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def _check_device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise PydanticCustomError("device", "is no device: use auto, cpu, cuda or cuda:1")
    return value


Device = Annotated[str, AfterValidator(_check_device)]
"""The name of a device. Whether the machine has it, `tba/policy/placement.py` says."""
