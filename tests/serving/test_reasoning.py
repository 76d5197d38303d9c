"""Reasoning and calls of a model in all three protocols; what it says is scripted: a grammar forces it."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from servers import Connect, chat, events, make_speculator
from speculant.api.constraints import Constraint
from speculant.serving.answers import Service
from speculant.serving.formats import AnswerFormat

pytestmark = pytest.mark.anyio
SAID = "<think>\nHm.\n</think>\n\nWell.<tool_call>now</tool_call>"
NOW = {"type": "function", "function": {"name": "now"}}
TEMPLATE = {
    "start_anchor_pattern": "^",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "transform": {"function": {"name": "{content}", "arguments": {}}},
        },
        "content": {"close": "</s>"},
    },
}


@pytest.mark.parametrize("known", [True, False])
async def test_reasoning_in_all_protocols(
    connect: Connect, ending_model: Any, calling: Any, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Guards what chats, responses and messages say of reasoning and a call, in GLM's format or a checkpoint's own."""
    tokenizer = copy.deepcopy(calling)
    if known:
        tokenizer.chat_template += "{# <think> <arg_key> #}"
    else:
        pytest.importorskip("transformers.utils.chat_parsing", reason="older transformers have no such parser")
        tokenizer.chat_template = tokenizer.chat_template.replace("<tool_call>", "(call)")
        tokenizer.response_template = TEMPLATE

    async def scripted(self: Service, *_: Any) -> Any:
        return await self.grammars.compile(AnswerFormat(Constraint.regex(re.escape(SAID)), "script"), None)

    monkeypatch.setattr(Service, "compile_constraint", scripted)
    async with connect(served=make_speculator(ending_model, tokenizer)) as client:
        body = chat(tools=[NOW], max_tokens=200)
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        streamed = (await client.post("/v1/chat/completions", json=body | {"stream": True})).text
        asked: dict[str, Any] = {"model": body["model"], "temperature": 0}
        response = (
            await client.post(
                "/v1/responses", json=asked | {"input": "Hi", "tools": [{"type": "function", "name": "now"}]}
            )
        ).json()
        tool = {"name": "now", "input_schema": {"type": "object"}}
        sent = asked | {"messages": body["messages"], "tools": [tool], "max_tokens": 200}
        message = (await client.post("/v1/messages", json=sent)).json()
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == choice["message"]["reasoning"] == "Hm."
    assert choice["message"]["content"] == "Well."
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    used = answer["usage"]
    assert 0 < used["completion_tokens_details"]["reasoning_tokens"] < used["completion_tokens"]
    deltas = [json.loads(each)["choices"][0]["delta"] for each in events(streamed)[:-1]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Well."
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]
    assert response["output"][0]["content"][0]["text"] == "Hm."
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["content"][0]["thinking"] == "Hm."


async def test_earlier_reasoning_reaches_the_template(connect: Connect, model: Any, tokenizer: Any) -> None:
    """Guards earlier turns: the same prompt in all protocols; one that refuses it beside a call does not get it."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = (
        "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('both') }}"
        "{% endif %}{{ m.role }}{% if m.thinking %}({{ m.thinking }}){% endif %}: {{ m.content }}\n{% endfor %}"
    )
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Well.", "reasoning_content": "A long thought."},
        {"role": "user", "content": "So?"},
    ]
    plain = [{"role": each["role"], "content": each["content"]} for each in said]
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "A long thought."}]}
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "A long thought."}]}
    blocks = [{"type": "thinking", "thinking": "A long thought.", "signature": ""}, {"type": "text", "text": "Well."}]
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    async with connect(served=make_speculator(model, own)) as client:

        async def count(path: str, **body: Any) -> int:
            answer = await client.post(path, json=chat(**body) | body if path.endswith("completions") else body)
            assert answer.status_code == 200, answer.text
            used = answer.json()["usage"]
            return int(used.get("prompt_tokens") or used["input_tokens"] + used.get("cache_read_input_tokens", 0))

        wanted = await count("/v1/chat/completions", messages=said)
        assert wanted > await count("/v1/chat/completions", messages=plain)
        for item in (thought, summary):
            items = [plain[0], item, *plain[1:]]
            assert await count("/v1/responses", input=items, max_output_tokens=1) == wanted
        turns = [plain[0], {"role": "assistant", "content": blocks}, plain[2]]
        assert await count("/v1/messages", messages=turns, max_tokens=1) == wanted
        with_call = [said[0], said[1] | {"tool_calls": [call]}, said[2]]
        without = [plain[0], plain[1] | {"tool_calls": [call]}, plain[2]]
        assert await count("/v1/chat/completions", messages=with_call) == await count(
            "/v1/chat/completions", messages=without
        )
