"""Bounds of lists and objects in requests, by which a body of wrong values is refused at its first one.

A body of a megabyte could hold hundreds of thousands of errors, which take seconds to collect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

T = TypeVar("T")
MOST_FIELDS = 64  # of an object with names of its own; the largest has 48


def at_most(count: int) -> Callable[[Any], Any]:
    """Return what refuses an object of more members before any of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"it has {len(value)} members, and at most {count} are taken")
        return value

    return check


Rows = Annotated[list[T], Field(fail_fast=True)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(at_most(4096))]


class Strict(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        return at_most(MOST_FIELDS)(value)
