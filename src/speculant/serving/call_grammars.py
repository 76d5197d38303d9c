"""Grammar rules of calls in models' own formats: Qwen3-Coder's tags, and Mistral's JSON.

Mistral's models write `[TOOL_CALLS]NAME[ARGS]{...}` for each call, with `[CALL_ID]` and an id after the name if their
chat template has it; older ones write `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, objects with ids or
without.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speculant.api.constraints import Constraint
from speculant.core.errors import SpeculantError
from speculant.serving.errors import ApiError
from speculant.serving.hermes import BEGIN, END
from speculant.serving.schemas import FunctionDefinition
from speculant.serving.tag_grammars import tag_rules
from speculant.serving.tool_formats import TOOL_FORMATS, ToolFormat

COMPACT = {"whitespace_flexible": False}
LAYOUT = COMPACT | {"item_separator": ", ", "key_separator": ": "}  # the JSON layout of chat templates
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
CALLS, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ID = "ID: /[A-Za-z0-9]{9}/"

Symbol = Callable[[str], str]  # returns a mark's grammar symbol: a special token, or text
Rules = Callable[[Sequence[FunctionDefinition], Symbol, bool], list[str] | None]


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The grammar of calls in a format.

    Attributes:
        begin: the mark that begins a call, or several.
        tokens: all marks.
        rules: returns the rules of `body`, what follows `begin`, for functions that may be called, the symbols of marks
            and whether there may be several calls; None if the format cannot express a schema.
    """

    begin: str
    tokens: tuple[str, ...]
    rules: Rules


def own_grammar(form: ToolFormat | None, template: str) -> CallGrammar | None:
    """Return the grammar of a model's own format, or None if there is none; Hermes' is `tool_choice`'s.

    Args:
        form: the format.
        template: the model's chat template.
    """
    if form is TOOL_FORMATS["qwen3_coder"]:
        return TAGGED
    if form is not TOOL_FORMATS["mistral"]:
        return None
    if ARGUMENTS not in template:
        return CallGrammar(CALLS, (CALLS,), _write_listed)
    return NAMED_WITH_ID if CALL_ID in template else NAMED


def mark_symbol(text: str, *, named: bool) -> str:
    """Return the grammar symbol of a mark: the special token of this name (see `Constraint.grammar`), or text."""
    if not named:
        return json.dumps(text)
    return text if text.startswith("<") else f"<{text}>"


def check_constraint(make: Callable[[], Constraint]) -> Constraint:
    """Create a constraint of tools.

    Raises:
        ApiError: it is too large, or its schema is invalid.
    """
    try:
        return make()
    except SpeculantError as error:
        raise ApiError(400, str(error), param="tools", code="invalid_value") from error


def argument_schema(function: FunctionDefinition) -> str:
    """Return the schema of a function's arguments with their JSON layout; if not strict, it is enforced where possible.

    Raises:
        ApiError: it is not the schema of an object, or has too many repetitions.
    """
    schema = NO_PARAMETERS if function.parameters is None else function.parameters
    check_constraint(lambda: Constraint.json_schema(schema))  # of its patterns, which cannot be told apart in a grammar
    options = LAYOUT if function.strict else LAYOUT | {"lenient": True}
    text = json.dumps({"type": "object"} | schema | {"x-guidance": options})
    return text.replace("<[", "\\u003c[")  # which would be a special token


def _write_tagged(functions: Sequence[FunctionDefinition], symbol: Symbol, _several: bool) -> list[str] | None:
    return tag_rules(functions, symbol(END), LAYOUT)


def _write_listed(functions: Sequence[FunctionDefinition], _symbol: Symbol, several: bool) -> list[str] | None:
    more = ' (", " object)*' if several else ""
    rules = [f'body: " "? "[" object{more} "]"', _ID, r'identity: ", \"id\": \"" ID "\""']
    rules.append(f"object: {' | '.join(f'call_{place}' for place in range(len(functions)))}")
    for place, function in enumerate(functions):
        head = json.dumps(f'{{"name": {json.dumps(function.name, ensure_ascii=False)}, "arguments": ')
        rules.append(f'call_{place}: {head} %json {argument_schema(function)} identity? "}}"')
    return rules


def _write_named(functions: Sequence[FunctionDefinition], symbol: Symbol, _several: bool) -> list[str] | None:
    return _write_named_calls(functions, symbol(ARGUMENTS))


def _write_named_with_id(functions: Sequence[FunctionDefinition], symbol: Symbol, _several: bool) -> list[str] | None:
    return [*_write_named_calls(functions, f"identity? {symbol(ARGUMENTS)}"), f"identity: {symbol(CALL_ID)} ID", _ID]


def _write_named_calls(functions: Sequence[FunctionDefinition], between: str) -> list[str]:
    rules = [f"body: {' | '.join(f'call_{place}' for place in range(len(functions)))}"]
    for place, function in enumerate(functions):
        name = json.dumps(function.name, ensure_ascii=False)
        rules.append(f"call_{place}: {name} {between} %json {argument_schema(function)}")
    return rules


TAGGED = CallGrammar(BEGIN, (BEGIN, END), _write_tagged)
NAMED = CallGrammar(CALLS, (CALLS, ARGUMENTS), _write_named)
NAMED_WITH_ID = CallGrammar(CALLS, (CALLS, CALL_ID, ARGUMENTS), _write_named_with_id)
