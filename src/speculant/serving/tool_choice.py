r"""Tool calls allowed by `tools`, `tool_choice` and `parallel_tool_calls`, expressed as a grammar of the answer.

A call is `<tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>`, as in Qwen's and Hermes' chat templates;
`tag_grammars` has the format of Qwen3-Coder. If the model may call any tool in its own format, there is no grammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speculant.api.constraints import Constraint
from speculant.core.errors import SpeculantError
from speculant.serving.errors import ApiError
from speculant.serving.formats import AnswerFormat
from speculant.serving.schemas import AllowedToolChoice, ChatRequest, FunctionDefinition, NamedTool, Tool
from speculant.serving.tag_grammars import tag_rules
from speculant.serving.tool_formats import BEGIN, END

COMPACT = {"whitespace_flexible": False}
LAYOUT = COMPACT | {"item_separator": ", ", "key_separator": ": "}  # the JSON layout of chat templates
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """The effect of tools on an answer.

    Attributes:
        offered: tools for the chat template.
        allowed: names of tools that may be called; None for all.
        limit: maximum number of calls; None for no limit.
        format: constraint that they impose on the answer; None for none.
        forced: whether the answer consists only of calls.
        tagged: whether the constraint's calls are in the model's own format, with tags.
    """

    offered: Sequence[Tool] = ()
    allowed: frozenset[str] | None = None
    limit: int | None = None
    format: AnswerFormat | None = None
    forced: bool = False
    tagged: bool = False

    @property
    def own(self) -> bool:
        """Whether calls are in the model's own format rather than Hermes'."""
        return self.format is None or self.tagged


def plan_tools(
    body: ChatRequest,
    answer: AnswerFormat | None,
    text_tokens: Sequence[str] = (),
    *,
    own: bool = False,
    tagged: bool = False,
) -> ToolPlan:
    """Return the plan for a request's tools.

    Args:
        body: the request.
        answer: constraint on an answer without calls; None for none.
        text_tokens: tokens that free text may contain although llguidance treats them as special, such as `<think>`.
        own: whether the model writes calls in its own format, which grammars do not support: if calling is optional,
            calls are then only counted and checked against the allowed tools.
        tagged: whether that format is Qwen3-Coder's, which grammars support as far as `tag_grammars` does.

    Raises:
        ApiError: a tool or tool choice is not supported.
    """
    tools, choice = body.tools or [], body.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(400, "'tool_choice' needs 'tools'.", param="tool_choice", code="invalid_value")
        return ToolPlan()
    if choice == "none":
        return ToolPlan()
    if body.structured_outputs is not None and answer is not None:
        message = "'structured_outputs' cannot be combined with 'tools'; use 'response_format', or tool_choice 'none'."
        raise ApiError(400, message, param="structured_outputs", code="invalid_value")
    allowed, forced = list(tools), choice == "required"
    if isinstance(choice, NamedTool):
        allowed, forced = _select_named(tools, [choice]), True
    elif isinstance(choice, AllowedToolChoice):
        allowed, forced = _select_named(tools, choice.allowed_tools.tools), choice.allowed_tools.mode == "required"
    several = body.parallel_tool_calls is not False and not isinstance(choice, NamedTool)
    strict = any(tool.function.strict for tool in allowed)
    narrow = strict or not several or len(allowed) < len(tools)
    functions = [tool.function for tool in allowed]
    if tagged and narrow and not forced and answer is None and tag_rules(functions, END, LAYOUT) is not None:

        def tags(named: bool) -> str:
            own_rules = tag_rules(functions, _mark(END, named), LAYOUT) or []
            return "\n".join([*_text_start(several, named, text_tokens), *own_rules])

        constraint = _check_constraint(lambda: Constraint.grammar(tags(True), tokens=(BEGIN, END), spelled=tags(False)))
        return ToolPlan(offered=tools, format=AnswerFormat(constraint, "tools"), tagged=True)
    if forced or answer is not None or (narrow and not own):

        def rules(named: bool) -> str:
            if forced:
                start = _make_forced_rules(several, named)
            elif answer is None:
                start = _text_start(several, named, text_tokens)
            else:
                start = _json_start(answer, several, named)
            return "\n".join([*start, *_calls(functions, named)])

        constraint = _check_constraint(
            lambda: Constraint.grammar(rules(True), tokens=(BEGIN, END), spelled=rules(False))
        )
        return ToolPlan(offered=tools, format=AnswerFormat(constraint, "tools"), forced=forced)
    names = frozenset(tool.function.name for tool in allowed) if len(allowed) < len(tools) else None
    return ToolPlan(offered=tools, allowed=names, limit=None if several else 1)


def _select_named(tools: Sequence[Tool], names: Sequence[NamedTool]) -> list[Tool]:
    """Return the tools with these names.

    Raises:
        ApiError: there is no such tool.
    """
    found = {tool.function.name: tool for tool in tools}
    for named in names:
        if named.function.name not in found:
            message = f"there is no tool '{named.function.name[:64]}' in 'tools'."
            raise ApiError(400, message, param="tool_choice", code="invalid_value")
    wanted = {named.function.name for named in names}
    return [tool for name, tool in found.items() if name in wanted]


def _mark(text: str, named: bool) -> str:
    """Return the grammar symbol that begins or ends a call: the special token of this name, or text."""
    return text if named else json.dumps(text)


def _make_forced_rules(several: bool, named: bool) -> list[str]:
    """Return the grammar rules of an answer that is one call, or several if `several`."""
    start = r'call ("\n" call)*' if several else "call"
    return [f"start: {start}", f"call: {_mark(BEGIN, named)} body"]


def _text_start(several: bool, named: bool, tokens: Sequence[str]) -> list[str]:
    """Return the grammar rules of a text that may be followed by calls.

    Args:
        several: whether there may be several calls.
        named: whether calls begin with a special token.
        tokens: special tokens that the text may contain.
    """
    free, rules = "", list[str]()
    if tokens:
        free, rules = "marked* ", ["marked: TEXT mark", f"mark: {' | '.join(tokens)}"]
    start = f"({free}before body)* {free}text" if several else f"{free}text | {free}before body"
    before = f"before: TEXT {BEGIN}" if named else f"before[lazy]: TEXT {json.dumps(BEGIN)}"
    return [f"start: {start}", before, *rules, "text: TEXT", r"TEXT: /(.|\n)*/"]


def _json_start(answer: AnswerFormat, several: bool, named: bool) -> list[str]:
    """Return the grammar rules of an answer that is JSON, or one call, or several if `several`."""
    schema = json.loads(answer.constraint.text)
    compact = (schema if isinstance(schema, dict) else {"allOf": [schema]}) | {"x-guidance": COMPACT}
    _, call = _make_forced_rules(several, named)
    start = r'answer | call ("\n" call)*' if several else "answer | call"
    return [f"start: {start}", call, f"answer: %json {json.dumps(compact)}"]


def _calls(functions: Sequence[FunctionDefinition], named: bool) -> list[str]:
    """Return the grammar rules of `body`, a call without its beginning."""
    rules = [f"body: {' | '.join(f'call_{place}' for place in range(len(functions)))}"]
    for place, function in enumerate(functions):
        head = json.dumps(f'\n{{"name": {json.dumps(function.name, ensure_ascii=False)}, "arguments": ')
        tail = json.dumps("}\n")
        rules.append(f"call_{place}: {head} %json {_schema(function)} {tail} {_mark(END, named)}")
    return rules


def _check_constraint(make: Callable[[], Constraint]) -> Constraint:
    """Create a constraint of tools.

    Raises:
        ApiError: it is too large, or its schema is invalid.
    """
    try:
        return make()
    except SpeculantError as error:
        raise ApiError(400, str(error), param="tools", code="invalid_value") from error


def _schema(function: FunctionDefinition) -> str:
    """Return the schema of a function's arguments with their JSON layout; if not strict, it is enforced where possible.

    Raises:
        ApiError: it is not the schema of an object, or has too many repetitions.
    """
    schema = NO_PARAMETERS if function.parameters is None else function.parameters
    _check_constraint(
        lambda: Constraint.json_schema(schema)
    )  # of its patterns, which cannot be told apart within a grammar
    options = LAYOUT if function.strict else LAYOUT | {"lenient": True}
    return json.dumps({"type": "object"} | schema | {"x-guidance": options})
