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


async def test_reasoning_in_all_protocols(
    connect: Connect, ending_model: Any, calling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards what chats, responses and messages say of reasoning and of a call in GLM's format, whole and streamed."""
    tokenizer = copy.deepcopy(calling)
    tokenizer.chat_template += "{# <think> <arg_key> #}"

    async def scripted(self: Service, *_: Any) -> Any:
        return await self.grammars.compile(AnswerFormat(Constraint.regex(re.escape(SAID)), "script"), None)

    monkeypatch.setattr(Service, "compiled", scripted)
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
