"""Size bounds of lists and objects in requests, so that a body with many invalid values is refused early.

A one-megabyte body could contain hundreds of thousands of errors, which take seconds to collect.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ModelWrapValidatorHandler, model_validator

from speculant.serving.lenience import unused_members

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
MAX_FIELDS = 64  # maximum members of an object with declared fields; the largest has fewer than 60


def at_most(count: int) -> Callable[[Any], Any]:
    """Return a validator that refuses an object with more than `count` members before validating any of them."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"it has {len(value)} members, and at most {count} are taken")
        return value

    return check


class UnknownMemberError(ValueError):
    """An object has an unknown member.

    Attributes:
        name: name of the member.
        near: the known name that was probably meant; None if none is similar.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__("it has an unknown member")  # without its name, which may not be valid UTF-8
        self.name = name
        self.near = next(iter(difflib.get_close_matches(name[:64], known, n=1)), None)


Rows = Annotated[list[T], Field(fail_fast=True)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(at_most(4096))]


def _nulls_allowed(schema: dict[str, Any]) -> None:
    if schema.get("additionalProperties") is False:
        schema["additionalProperties"] = {"type": "null"}


class Strict(BaseModel):
    """Base class of request objects. Members that are null, including unknown ones, are treated as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_nulls_allowed)

    @model_validator(mode="wrap")
    @classmethod
    def _check_bounds(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        value = at_most(MAX_FIELDS)(value)
        if not isinstance(value, dict):
            return handler(value)
        fields = {field.alias or name: field.is_required() for name, field in cls.model_fields.items()}
        given = {name: each for name, each in value.items() if each is not None or fields.get(name)}
        unknown = [name for name in given if name not in fields] if cls.is_closed(given) else []
        unused = unused_members()
        if unknown and not (unused and unused.lenient):
            raise UnknownMemberError(unknown[0], fields)
        known = {name: each for name, each in given.items() if name not in unknown}
        if unused is None:
            return handler(known)
        with unused.attempt():
            found = handler(known)
            unused.add(found, unknown, {name: field.alias or name for name, field in cls.model_fields.items()})
        return found

    @classmethod
    def is_closed(cls, given: dict[str, Any]) -> bool:  # noqa: ARG003  (for classes that look at them)
        """Return whether an object with these members may have no members besides the declared ones."""
        return cls.model_config.get("extra") == "forbid"
