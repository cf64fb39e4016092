"""A user's own objective: a class that `objective.kind` names, with its settings as keyword arguments."""

from __future__ import annotations

import inspect
import typing
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tba.config.user_code import find
from tba.objectives.base import Objective, ObjectiveSettings
from tba.types import TbaError

_GIVEN = ("num_steps", "hidden_size")
"""What a class may ask for by the name of a parameter, beside its settings."""


class Settings(ObjectiveSettings):
    """An objective of your own. All other settings of the section are handed to the class as keyword arguments."""

    model_config = ConfigDict(extra="allow")

    kind: str
    """`module:Class` or `file.py:Class`: a subclass of `tba.Objective`."""
    is_code: ClassVar[bool] = True

    def build(self, *, num_steps: int, hidden_size: int) -> Objective:
        made = self._load()
        given = {"num_steps": num_steps, "hidden_size": hidden_size}
        asked = inspect.signature(made).parameters
        return made(**self._values(made), **{name: given[name] for name in _GIVEN if name in asked})

    def check(self) -> None:
        self._values(self._load())

    def _load(self) -> type[Objective]:
        found = find(self.kind, "objective.kind", "Class")
        if not (isinstance(found, type) and issubclass(found, Objective)):
            raise TbaError(f"objective.kind {self.kind!r} is no subclass of tba.Objective: make it one")
        return found

    def _values(self, made: type[Objective]) -> dict[str, Any]:
        """The settings as the types that the class declares for them."""
        parameters = inspect.signature(made).parameters
        settings = self.model_extra or {}
        hints = typing.get_type_hints(made.__init__)
        for name in settings:
            if name not in parameters or name in _GIVEN:
                raise TbaError(f"unknown setting objective.{name}: {self.kind} takes {_listed(parameters)}")
        for name, parameter in parameters.items():
            if parameter.default is parameter.empty and name not in settings and name not in _GIVEN:
                raise TbaError(f"objective.{name} is missing: {self.kind} asks for it")
        return {name: self._value(name, value, hints.get(name, Any)) for name, value in settings.items()}

    def _value(self, name: str, value: Any, hint: Any) -> Any:
        try:
            return TypeAdapter(hint).validate_python(value)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise TbaError(f"objective.{name} = {value!r}: {message[0].lower()}{message[1:]}") from None


def _listed(parameters: typing.Mapping[str, Any]) -> str:
    return ", ".join(name for name in parameters if name not in _GIVEN) or "no settings"
