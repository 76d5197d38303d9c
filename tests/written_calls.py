"""Answers with calls of tools, parsed as the server parses them."""

from __future__ import annotations

import json
from typing import Any

from speculant.serving.answer_parser import AnswerParser
from speculant.serving.harmony import HarmonyParser
from speculant.serving.reasoning import REASONING_FORMATS, ReasoningParser
from speculant.serving.tool_formats import TOOL_FORMATS
from speculant.serving.tools import ToolCallParser

STRING, NUMBER = {"type": "string"}, {"type": "integer"}
SCHEMAS: dict[str, Any] = {
    "weather": {"type": "object", "properties": {"city": STRING, "days": NUMBER, "where": {"type": "object"}}},
    "now": {"type": "object", "properties": {}},
}
ROME, OSLO = {"city": "Rom é 東"}, {"city": "Oslo", "days": 3}
KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
NS = "]<]minimax[>["  # before every tag of MiniMax-M3; below, the special tokens of Kimi K3
O, C, S = "<|open|>", "<|close|>", "<|sep|>"  # noqa: E741


def as_json(arguments: Any) -> str:
    """Return arguments in JSON."""
    return json.dumps(arguments, ensure_ascii=False)


def parse(reasoning: str, tools: str, text: str, size: int, *, begun: bool = False, **options: Any) -> Any:
    """Return reasoning, text and the functions called, of a text in pieces."""
    calls = ToolCallParser(TOOL_FORMATS.get(tools, TOOL_FORMATS["hermes"]), schemas=SCHEMAS, **options)
    parser: AnswerParser | HarmonyParser
    if tools == "harmony":
        parser = HarmonyParser(calls, reasons=reasoning != "none")
    else:
        form = REASONING_FORMATS.get(reasoning)
        thought = None if form is None else ReasoningParser(form, begun=begun)
        parser = AnswerParser(
            thought, calls if tools != "none" else None, framing=form if form and form.frames else None
        )
    found = [parser.push(text[place : place + size]) for place in range(0, len(text), size)] + [parser.flush()]
    streamed = [delta for each in found for delta in each[2]]
    assert [delta["function"] for delta in streamed] == [call["function"] for call in parser.calls]
    functions = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in parser.calls]
    return "".join(each[0] for each in found), "".join(each[1] for each in found), functions
