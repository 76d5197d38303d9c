"""Argument values of tool calls that are written as plain text, parsed according to the tool's schema."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

Schemas = Mapping[str, Mapping[str, Any]]  # schema of each tool's arguments, by tool name


def read_value(text: str, schema: Any) -> Any:
    """Parse a value; it stays text if the schema says so or if it is not JSON."""
    kinds = set(_types(schema))
    bare = text.strip()
    if "null" in kinds and bare in ("null", "None"):
        return None
    if "string" in kinds:
        return text
    if "boolean" in kinds and bare in ("True", "False"):
        return bare == "True"
    try:
        return json.loads(bare)
    except (ValueError, RecursionError):
        return _read_python(bare, text) if kinds & {"array", "object"} else text


def _read_python(text: str, otherwise: Any) -> Any:
    """Parse a list or dictionary as Python writes it, which the templates of some models show of earlier calls."""
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return otherwise
    return value if isinstance(value, list | dict) else otherwise


def retype_value(value: Any, schema: Any) -> Any:
    """Parse a text whose schema has other types only; return every other value as it is."""
    kinds = set(_types(schema))
    return read_value(value, schema) if isinstance(value, str) and kinds and "string" not in kinds else value


def schema_of(schemas: Schemas, tool: str, argument: str) -> Any:
    """Return the schema of an argument, or None if there is none."""
    properties = schemas.get(tool, {}).get("properties")
    return properties.get(argument) if isinstance(properties, dict) else None


def _types(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    yield from [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
    for name in ("anyOf", "oneOf"):
        for each in schema[name] if isinstance(schema.get(name), list) else []:
            yield from _types(each)
    values = schema.get("enum")
    if kind is None and isinstance(values, list) and any(isinstance(value, str) for value in values):
        yield "string"
