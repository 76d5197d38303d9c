"""Stop strings and tool calls in texts that come in pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant.serving.stops import StopFilter
from speculant.serving.tools import ToolCallParser


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop(text: str, stops: list[str]) -> None:
    """Guards the filter, letter by letter: what it passes is the text up to the earliest stop that is complete."""
    ends = [place + len(stop) for stop in stops if (place := text.find(stop)) >= 0]
    found = StopFilter(stops)
    passed = "".join(found.push(letter) for letter in text) + found.flush()
    if not ends:
        assert passed == text
        assert not found.stopped
    else:
        head = text[: min(ends)]
        begins = [place for stop in stops if (place := head.find(stop)) >= 0]
        assert passed == head[: min(begins)]
        assert found.rest == text[min(ends) :]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_tool_calls(size: int) -> None:
    """Guards calls and the text around them, in pieces of any size."""
    text = (
        'Well.<tool_call>\n{"name": "f", "arguments": {"x": [1]}}\n</tool_call>\n<tool_call>{"name": "g"}</tool_call>!'
    )
    parser, content = ToolCallParser(), ""
    for place in range(0, len(text), size):
        content += parser.push(text[place : place + size])[0]
    assert content + parser.flush()[0] == "Well.\n!"
    functions = [call["function"] for call in parser.calls]
    assert [each["name"] for each in functions] == ["f", "g"]
    assert json.loads(functions[0]["arguments"]) == {"x": [1]}


@pytest.mark.parametrize("text", ["<tool_call>no JSON</tool_call>", "a <tool_call>{", "<tool", "a < b"])
def test_what_is_no_call_stays_text(text: str) -> None:
    """Guards answers that only look like calls."""
    parser = ToolCallParser()
    content = "".join(parser.push(letter)[0] for letter in text)
    assert content + parser.flush()[0] == text
    assert not parser.calls
