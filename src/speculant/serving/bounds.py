"""Bounds of lists and objects in requests, by which a body of wrong values is refused at its first one.

A body of a megabyte could hold hundreds of thousands of errors, which take seconds to collect.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

T = TypeVar("T")
MAX_FIELDS = 64  # of an object with names of its own; the largest has less than 60


def at_most(count: int) -> Callable[[Any], Any]:
    """Return what refuses an object of more members before any of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"it has {len(value)} members, and at most {count} are taken")
        return value

    return check


class UnknownMemberError(ValueError):
    """A member of an object that has none of that name.

    Attributes:
        name: of the member.
        near: the name of the one that was likely meant; None where none is alike.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__("it has an unknown member")  # not its name, which may be no UTF-8
        self.name = name
        self.near = next(iter(difflib.get_close_matches(name[:64], known, n=1)), None)


Rows = Annotated[list[T], Field(fail_fast=True)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(at_most(4096))]


def _nulls_allowed(schema: dict[str, Any]) -> None:
    if schema.get("additionalProperties") is False:
        schema["additionalProperties"] = {"type": "null"}


class Strict(BaseModel):
    """A part of a request. A member that is null asks for nothing, so it is taken as left out, an unknown one too."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_nulls_allowed)

    @model_validator(mode="before")
    @classmethod
    def _check_bounds(cls, value: Any) -> Any:
        value = at_most(MAX_FIELDS)(value)
        if not isinstance(value, dict):
            return value
        fields = {field.alias or name: field.is_required() for name, field in cls.model_fields.items()}
        given = {name: each for name, each in value.items() if each is not None or fields.get(name)}
        if cls.model_config.get("extra") == "forbid" and (unknown := [name for name in given if name not in fields]):
            raise UnknownMemberError(unknown[0], fields)
        return given
