r"""Tool calls allowed by `tools`, `tool_choice` and `parallel_tool_calls`, expressed as a grammar of the answer.

A call is `<tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>`, as in Qwen's and Hermes' chat templates;
`call_grammars` has the formats of Qwen3-Coder and Mistral. If the model may call any tool in its own format, there is
no grammar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from speculant.api.constraints import Constraint
from speculant.serving.call_grammars import COMPACT, CallGrammar, argument_schema, check_constraint, mark_symbol
from speculant.serving.errors import ApiError
from speculant.serving.formats import AnswerFormat
from speculant.serving.hermes import BEGIN, END
from speculant.serving.schemas import AllowedToolChoice, ChatRequest, FunctionDefinition, NamedTool, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """The effect of tools on an answer.

    Attributes:
        offered: tools for the chat template.
        allowed: names of tools that may be called; None for all.
        limit: maximum number of calls; None for no limit.
        format: constraint that they impose on the answer; None for none.
        forced: whether the answer consists only of calls.
        native: whether the constraint's calls are in the model's own format.
    """

    offered: Sequence[Tool] = ()
    allowed: frozenset[str] | None = None
    limit: int | None = None
    format: AnswerFormat | None = None
    forced: bool = False
    native: bool = False

    @property
    def own(self) -> bool:
        """Whether calls are in the model's own format rather than Hermes'."""
        return self.format is None or self.native


def plan_tools(
    body: ChatRequest,
    answer: AnswerFormat | None,
    text_tokens: Sequence[str] = (),
    *,
    own: bool = False,
    native: CallGrammar | None = None,
) -> ToolPlan:
    """Return the plan for a request's tools.

    Args:
        body: the request.
        answer: constraint on an answer without calls; None for none.
        text_tokens: tokens that free text may contain although llguidance treats them as special, such as `<think>`;
            those without angle brackets only with a native grammar.
        own: whether the model writes calls in its own format. Without a grammar of it, if calling is optional, calls
            are only counted and checked against the allowed tools.
        native: the grammar of that format, as far as it can express the tools' schemas; None if there is none.

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
    if native is not None and narrow and not forced and answer is None:
        begin, rules_of = native.begin, native.rules
        angled = [token for token in text_tokens if token.startswith("<")]
        others = tuple(token for token in text_tokens if token not in angled)
        if rules_of(functions, partial(mark_symbol, named=True), several) is not None:

            def native_rules(named: bool) -> str:
                own_rules = rules_of(functions, partial(mark_symbol, named=named), several) or []
                start = _text_start(several, named, [*angled, *others] if named else angled, begin=begin)
                return "\n".join([*start, *own_rules])

            constraint = check_constraint(
                lambda: Constraint.grammar(
                    native_rules(True), tokens=native.tokens + others, spelled=native_rules(False)
                )
            )
            return ToolPlan(offered=tools, format=AnswerFormat(constraint, "tools"), native=True)
    if forced or answer is not None or (narrow and not own):

        def rules(named: bool) -> str:
            if forced:
                start = _make_forced_rules(several, named)
            elif answer is None:
                start = _text_start(several, named, text_tokens)
            else:
                start = _json_start(answer, several, named)
            return "\n".join([*start, *_calls(functions, named)])

        constraint = check_constraint(
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


def _make_forced_rules(several: bool, named: bool) -> list[str]:
    """Return the grammar rules of an answer that is one call, or several if `several`."""
    start = r'call ("\n" call)*' if several else "call"
    return [f"start: {start}", f"call: {mark_symbol(BEGIN, named=named)} body"]


def _text_start(several: bool, named: bool, tokens: Sequence[str], *, begin: str = BEGIN) -> list[str]:
    """Return the grammar rules of a text that may be followed by calls.

    Args:
        several: whether there may be several calls.
        named: whether calls begin with a special token.
        tokens: special tokens that the text may contain.
        begin: the mark that begins a call.
    """
    free, rules = "", list[str]()
    if tokens:
        marks = " | ".join(mark_symbol(token, named=True) for token in tokens)
        free, rules = "marked* ", ["marked: TEXT mark", f"mark: {marks}"]
    start = f"({free}before body)* {free}text" if several else f"{free}text | {free}before body"
    before = f"before{'' if named else '[lazy]'}: TEXT {mark_symbol(begin, named=named)}"
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
        rules.append(f"call_{place}: {head} %json {argument_schema(function)} {tail} {mark_symbol(END, named=named)}")
    return rules
