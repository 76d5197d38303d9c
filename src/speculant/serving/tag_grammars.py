r"""Grammar rules of calls whose arguments are tags, in the format of Qwen3-Coder.

A call is `<tool_call>\n<function=NAME>\n`, a `<parameter=KEY>\nVALUE\n</parameter>\n` for each argument in the order of
the schema, and `</function>\n</tool_call>`. Strings are written verbatim, other values as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from speculant.serving.schemas import FunctionDefinition

_NOTES = frozenset({"title", "description", "default", "examples", "$comment", "deprecated"})
_OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "$schema"}) | _NOTES
_NAMES = frozenset('<>"\n')  # characters that names of functions and arguments must not contain
CLOSES = "\n</parameter>\n"


def tag_rules(functions: Sequence[FunctionDefinition], end: str, layout: Mapping[str, Any]) -> list[str] | None:
    """Return the grammar rules of `body`, a call without its beginning; None if tags cannot express a schema.

    Args:
        functions: functions that may be called.
        end: grammar symbol that ends a call.
        layout: JSON layout, in llguidance's options.
    """
    rules = [f"body: {' | '.join(f'call_{place}' for place in range(len(functions)))}"]
    rules.append(f"tagged[lazy]: TAGGED {json.dumps(CLOSES)}")
    rules.append(r"TAGGED: /(.|\n)*/")
    for place, function in enumerate(functions):
        schema = function.parameters or {}
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not set(schema) <= _OF_OBJECTS or not isinstance(properties, dict) or not isinstance(required, list):
            return None
        if any(name not in [*properties] for name in required):
            return None
        arguments = list[str]()
        for number, (name, own) in enumerate(properties.items()):
            value = _value(own, schema, layout)
            if value is None or _NAMES & set(name):
                return None
            rules.append(f"value_{place}_{number}: {json.dumps(f'<parameter={name}>' + chr(10))} {value}")
            arguments.append(f"value_{place}_{number}" + ("" if name in required else "?"))
        if _NAMES & set(function.name):
            return None
        head, tail = json.dumps(f"\n<function={function.name}>\n"), json.dumps("</function>\n")
        rules.append(f"call_{place}: {' '.join([head, *arguments, tail, end])}")
    return rules


def _value(schema: Any, whole: Mapping[str, Any], layout: Mapping[str, Any]) -> str | None:
    """Return the grammar expression of a value and its closing tag; None if there is none."""
    if not isinstance(schema, dict):
        return None
    known = {name: value for name, value in schema.items() if name not in _NOTES}
    options = known.get("enum", [known["const"]] if "const" in known else None)
    if isinstance(options, list) and any(isinstance(each, str) for each in options):
        if not all(isinstance(each, str) for each in options):
            return None
        texts = (json.dumps(each + CLOSES, ensure_ascii=False) for each in options)
        return f"({' | '.join(texts)})" if set(known) <= {"type", "enum", "const"} else None
    if known == {"type": "string"}:
        return "tagged"
    kinds = known.get("type")
    if not isinstance(kinds, str) or kinds == "string":  # constrained strings, or unions with other types
        return None
    shared = {name: whole[name] for name in ("$defs",) if name in whole}
    return f"%json {json.dumps(known | shared | {'x-guidance': layout})} {json.dumps(CLOSES)}"
