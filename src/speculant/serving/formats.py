"""Constraints on answers from OpenAI's `response_format` and vLLM's `structured_outputs`.

JSON is generated without whitespace between its parts, because small models may generate optional whitespace forever.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from speculant.api.constraints import Constraint
from speculant.core.errors import SpeculantError
from speculant.serving.errors import ApiError
from speculant.serving.schemas import ResponseFormat, StructuredOutputs


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """A constraint on an answer, and the parameter that specifies it."""

    constraint: Constraint
    param: str


def format_of(response_format: ResponseFormat | None, outputs: StructuredOutputs | None) -> AnswerFormat | None:
    """Return the constraint on a request's answer, or None.

    Raises:
        ApiError: several constraints are given, or one is invalid.
    """
    found: list[tuple[str, str, Any]] = []
    if response_format is not None and response_format.type != "text":
        found.append(("response_format", response_format.type, response_format.json_schema))
    if outputs is not None:
        given = outputs.model_dump(by_alias=True, exclude_none=True)
        found += [("structured_outputs", name, value) for name, value in given.items()]
    if not found:
        return None
    param, kind, value = found[0]
    if len(found) > 1:
        message = "an answer can match one constraint: 'response_format', or one member of 'structured_outputs'."
        raise ApiError(400, message, param=param, code="invalid_value")
    try:
        return AnswerFormat(_constraint(kind, value), param)
    except SpeculantError as error:
        raise ApiError(400, str(error), param=param, code="invalid_value") from error


def _constraint(kind: str, value: Any) -> Constraint:
    if kind == "json_schema":
        if value is None:
            message = "'json_schema' is missing in 'response_format'."
            raise ApiError(400, message, param="response_format.json_schema", code="missing_parameter")
        return Constraint.json_schema(True if value.schema_ is None else value.schema_, compact=True)
    if kind == "json_object":
        return Constraint.json_object(compact=True)
    if kind == "json":
        return Constraint.json_schema(value, compact=True)
    if kind == "regex":
        return Constraint.regex(value)
    if kind == "choice":
        return Constraint.regex("|".join(map(re.escape, value)))
    return Constraint.grammar(value)
