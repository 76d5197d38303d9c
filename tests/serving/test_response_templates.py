"""Answers parsed by the response template of a checkpoint, and what becomes of those that it cannot parse."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from speculant.core.errors import UsageError
from speculant.serving.answer_parser import find_formats
from speculant.serving.response_templates import ResponseTemplate, TemplateParser, load_template
from speculant.serving.tools import ToolCallParser
from written_calls import OSLO, ROME, SCHEMAS, as_json

pytest.importorskip("transformers.utils.chat_parsing", reason="older transformers have no such parser")

TAGS: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<a>",
    "fields": {
        "reasoning_content": {"open": "{", "close": "}", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<call>",
            "close": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<end>", "content": "text"},
    },
}
XML = {
    "start_anchor": "<a>",
    "fields": {
        "thinking": {"open": "<t>", "close": "</t>", "content": "text"},
        "note": {"open": "<n>", "close": "</n>", "content": "text", "optional": False},
        "tool_calls": {
            "open_pattern": r"<f=(?P<name>\w+)>",
            "close": "</f>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<p=(?P<key>\w+)>(?P<value>.*?)</p>"},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"content": "text"},
    },
}


def _tokenizer(template: Any) -> Any:
    tokens = {1: SimpleNamespace(content="<call>", special=True), 2: SimpleNamespace(content="text", special=False)}
    return SimpleNamespace(response_template=template, added_tokens_decoder=tokens)


def _load(template: Any) -> ResponseTemplate:
    found = load_template(_tokenizer(template))
    assert found is not None
    return found


def _parse(template: Any, text: str, size: int, *, prompt: str = "<a>", tools: bool = True, **options: Any) -> Any:
    calls = ToolCallParser(schemas=SCHEMAS, **options)
    parser = TemplateParser(_load(template), prompt, calls if tools else None, schemas=SCHEMAS)
    found = [parser.push(text[place : place + size]) for place in range(0, len(text), size)] + [parser.flush()]
    assert [each["function"] for one in found for each in one[2]] == [each["function"] for each in parser.calls]
    functions = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in parser.calls]
    return "".join(each[0] for each in found), "".join(each[1] for each in found), functions


def _call(arguments: Any) -> str:
    return f'<call>{{"name": "weather", "arguments": {as_json(arguments)}}}</call>'


@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [
        (TAGS, "{\nHm.\n\nSo.\n}\n\nWell.<end>", ("Hm.\n\nSo.", "Well.", [])),
        (TAGS, f"Ok. {_call(ROME)}\n{_call(OSLO)}<end>", ("", "Ok.", [("weather", ROME), ("weather", OSLO)])),
        (
            XML,
            "<t>Hm.</t><f=weather><p=city>Oslo</p><p=days>3</p></f>Ok<n>noted</n>",
            ("Hm.", "Oknoted", [("weather", OSLO)]),
        ),
        (TAGS, "", ("", "", [])),
        (XML, "text < 3", ("", "text < 3", [])),
    ],
)
def test_answers_by_a_template(template: Any, text: str, expected: Any) -> None:
    """Guards reasoning, text and typed calls of a checkpoint's own format, cut at every character."""
    for size in (1, 2, 7, 99):
        assert _parse(template, text, size) == expected


def test_the_prompt_may_begin_the_reasoning() -> None:
    """Guards templates that open the reasoning in the prompt, after the last mark of an answer."""
    assert _parse(TAGS, "Hm.}Hi", 2, prompt="<a>x<end>{y}<a>{") == ("Hm.", "Hi", [])
    for prompt in ("<a>\n", "<a>x <", f"{_call(ROME)}<call>", "<a><ca"):  # text of the prompt is none of the answer
        assert _parse(TAGS, "Hi", 1, prompt=prompt) == ("", "Hi", []), prompt
    parser = TemplateParser(_load(TAGS), "<a>{", None, schemas={})
    assert parser.inside
    parser.push("Hm.}")
    assert not parser.inside


@pytest.mark.parametrize(
    "text",
    [
        '<call>{"name": "weather", "argum',
        "<call>{x}</call> and more",
        "<call>[1]</call>",
        "<call>",
        '<call>{"name": "other", "arguments": {}}</call>',
        '<<call>{"name": "other", "arguments": {}}</call>',
        'H<call>{"name": "other", "arguments": {}}</call><<call>x</call>  <b',
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    """Guards calls that are cut, malformed or not allowed: nothing is lost or repeated, their marks included."""
    calls = TAGS["fields"]["tool_calls"]
    spaced = {key: value for key, value in calls.items() if key != "close"} | {"close_pattern": r"</call>\s*"}
    for size in (1, 3, 99):
        for form in (calls, spaced):
            template = TAGS | {"fields": TAGS["fields"] | {"tool_calls": form}}
            assert _parse(template, text, size, allowed=frozenset(["weather"])) == ("", text, []), (size, form)


@pytest.mark.parametrize("text", ["<f=weather><p=city>Oslo</p><p=days>3", "<f=weather><p=city>Os", "<f=weather>"])
def test_a_call_that_is_cut_is_text(text: str) -> None:
    """Guards formats in which the part of a call reads like a whole one."""
    assert _parse(XML, text, 1) == ("", text, [])


def test_calls_without_tools_are_text() -> None:
    """Guards requests without tools: what a model calls nevertheless is part of the answer."""
    assert _parse(TAGS, f"Ok {_call(ROME)}", 5, tools=False) == ("", f"Ok {_call(ROME)}", [])


def test_templates_are_used_where_the_calls_are_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """Guards `auto` and the name: a known format comes first, and an invalid template is reported."""
    found = find_formats("{{ tools }}", _tokenizer(TAGS))
    assert found.template is not None
    assert found.calls
    assert found.reasons
    assert found.marks(reasons=True, tools=True) == ("<call>",)
    assert find_formats("{{ tools }}<tool_call>", _tokenizer(TAGS)).template is None
    assert find_formats("<tool_call>", _tokenizer(TAGS), tools="response_template").template is not None
    assert not find_formats("{{ tools }}", _tokenizer(None)).calls
    with caplog.at_level(logging.WARNING):
        assert find_formats("{{ tools }}", _tokenizer({"fields": {"content": {"open": 1}}})).template is None
    assert "cannot be used" in caplog.text
    with pytest.raises(UsageError, match="cannot be used"):
        find_formats("", _tokenizer({"fields": {}}), reasoning="response_template")
    with pytest.raises(UsageError, match="has no response template"):
        find_formats("", _tokenizer(None), tools="response_template")
    with pytest.raises(UsageError, match="do not go together"):
        find_formats("", _tokenizer(TAGS), tools="response_template", reasoning="think")
