"""Anthropic's Messages API: its own client, the order of events, tools, errors in its form."""

from __future__ import annotations

from typing import Any

import pytest

from servers import MODEL, Connect, serving, typed_events
from speculant.serving.message_blocks import read_messages
from speculant.serving.message_schemas import MessagesRequest
from speculant.serving.segments import Segmenter
from speculant.serving.turns import AnswerPart

pytestmark = pytest.mark.anyio
PATH = "/v1/messages"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": [1, 2]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
ADD = {"name": "add", "input_schema": SCHEMA, "strict": True, "cache_control": {"type": "ephemeral"}}


def body(content: Any = "Once upon a time", **options: Any) -> dict[str, Any]:
    """Return the body of a greedy request."""
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "max_tokens": 12, "top_k": 1} | options


def arguments(content: Any = "Once upon a time", **options: Any) -> dict[str, Any]:
    """Return the same for Anthropic's client, which has no sampling options of its own."""
    found = body(content, **options)
    return found | {"extra_body": {"top_k": found.pop("top_k")}}


def test_official_client(model: Any, tokenizer: Any) -> None:
    """Guards Anthropic's client: key, whole and streamed texts, stop sequences, counting, errors."""
    anthropic = pytest.importorskip("anthropic")
    with (
        serving(model, tokenizer, api_keys=("secret",)) as (_, address),
        anthropic.Anthropic(base_url=address, api_key="secret", max_retries=0) as client,
    ):
        options = arguments(system=[{"type": "text", "text": "Tell.", "cache_control": {"type": "ephemeral"}}])
        whole = client.messages.create(**options)
        text = whole.content[0].text
        assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 12)
        with client.messages.stream(**options) as stream:
            assert "".join(stream.text_stream) == text
            final = stream.get_final_message()
        assert (final.content[0].text, final.stop_reason) == (text, "max_tokens")
        assert final.usage.cache_read_input_tokens + final.usage.input_tokens == (
            whole.usage.input_tokens + whole.usage.cache_read_input_tokens
        )
        counted = client.messages.count_tokens(model=MODEL, messages=options["messages"], system=options["system"])
        assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
        stop = text[len(text) // 2 :][:3]
        stopped = client.messages.create(**options, stop_sequences=[stop])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
        assert "".join(block.text for block in stopped.content) == text[: text.index(stop)]
        many = client.messages.create(**options | {"stop_sequences": [stop], "max_tokens": 20_000})
        assert many.content == stopped.content
        with pytest.raises(anthropic.BadRequestError, match="context_management"):
            client.messages.create(**options | {"extra_body": {"context_management": {"edits": [{"type": "other"}]}}})
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**options | {"model": "other"})
        with (
            anthropic.Anthropic(base_url=address, api_key="wrong", max_retries=0) as stranger,
            pytest.raises(anthropic.AuthenticationError),
        ):
            stranger.messages.create(**options)


async def test_events_of_a_text(connect: Connect) -> None:
    """Guards the order of events."""
    async with connect() as client:
        found = typed_events((await client.post(PATH, json=body(stream=True))).text)
        whole = (await client.post(PATH, json=body())).json()
    kinds = [each["type"] for each in found]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert "".join(each["delta"]["text"] for each in found[3:-3]) == whole["content"][0]["text"]
    assert found[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == 12


def test_tools_of_the_official_client(ending_model: Any, calling: Any) -> None:
    """Guards tools: a forced call, whole and streamed, and its result in the next turn."""
    anthropic = pytest.importorskip("anthropic")
    with (
        serving(ending_model, calling) as (_, address),
        anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client,
    ):
        options = arguments("Add.", tools=[ADD], tool_choice={"type": "tool", "name": "add"}, max_tokens=80)
        whole = client.messages.create(**options)
        assert whole.stop_reason == "tool_use"
        [call] = whole.content
        assert (call.name, set(call.input)) == ("add", {"a", "b"})
        with client.messages.stream(**options) as stream:
            kinds = [event.type for event in stream]
            [streamed] = stream.get_final_message().content
        assert streamed.input == call.input
        assert "input_json" in kinds
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "3"}]}
        messages = [
            *options["messages"],
            {"role": "assistant", "content": whole.content},
            {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
        ]
        none = {"tool_choice": {"type": "none"}, "messages": messages, "max_tokens": 5}
        assert client.messages.create(**options | none).stop_reason == "max_tokens"


def test_blocks_become_messages() -> None:
    """Guards the translation: results come first, thinking goes with the message, images stay parts."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}}
    messages = [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Look."},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"b": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "none", "is_error": True},
                {"type": "text", "text": "See:"},
                image,
            ],
        },
    ]
    request = MessagesRequest.model_validate({"messages": messages, "max_tokens": 1})
    said, result, asked = read_messages(None, request.messages)
    assert (said["content"], said["reasoning_content"]) == ("Look.", "Hm.")
    assert said["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"b": 1}'}
    assert result == {"role": "tool", "content": "Error: none", "tool_call_id": "a"}
    assert asked["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,aa"}}


def test_segments() -> None:
    """Guards the neutral stream: reasoning, text and calls one after the other, without the space between calls."""
    segmenter = Segmenter()
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}
    parts = [
        AnswerPart(reasoning="Hm"),
        AnswerPart(reasoning="."),
        AnswerPart(text="\n"),
        AnswerPart(text="Hi"),
        AnswerPart(calls=[call]),
        AnswerPart(calls=[{"index": 0, "function": {"arguments": "}"}}], text=""),
        AnswerPart(text="\n", calls=[call | {"id": "b"}]),
        AnswerPart(finish_reason="length"),
    ]
    steps = [(step.kind, step.segment.kind, step.text) for part in parts for step in segmenter.push(part)]
    assert steps == [
        ("begin", "reasoning", ""),
        ("grow", "reasoning", "Hm"),
        ("grow", "reasoning", "."),
        ("end", "reasoning", ""),
        ("begin", "text", ""),
        ("grow", "text", "\nHi"),
        ("end", "text", ""),
        ("begin", "call", ""),
        ("grow", "call", "{"),
        ("grow", "call", "}"),
        ("end", "call", ""),
        ("begin", "call", ""),
        ("grow", "call", "{"),
        ("end", "call", ""),
    ]
    assert [segment.whole for segment in segmenter.segments] == [True, True, True, False]


@pytest.mark.parametrize(
    ("changes", "status", "kind"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, 400, "invalid_request_error"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error"),
        ({"tool_choice": {"type": "tool"}}, 400, "invalid_request_error"),
        ({"mcp_servers": []}, 400, "invalid_request_error"),
        ({"model": "other"}, 404, "not_found_error"),
    ],
)
async def test_refusals(connect: Connect, changes: dict[str, Any], status: int, kind: str) -> None:
    """Guards what cannot be honoured: it is refused in Anthropic's form."""
    async with connect() as client:
        answer = await client.post(PATH, json=body() | changes)
    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == kind
    assert answer.json()["error"]["message"]


def test_the_billing_header_is_not_for_the_model() -> None:
    """Guards prompts of Claude Code: its first system block differs between conversations, and all else is shared."""
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1.a2b;"},
        {"type": "text", "text": "Act."},
    ]
    given = body(system=system)
    request = MessagesRequest.model_validate(given)
    assert read_messages(request.system, request.messages)[0] == {"role": "system", "content": "Act."}
    request = MessagesRequest.model_validate(given | {"system": system[:1]})
    assert [each["role"] for each in read_messages(request.system, request.messages)] == ["user"]
