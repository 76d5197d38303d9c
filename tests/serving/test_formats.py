"""What answers must match, log-probabilities, penalties and shared prefixes, as clients ask for them."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from servers import Connect, chat, completion, events

pytestmark = pytest.mark.anyio
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}


async def test_answers_match_a_schema(connect: Connect, ending: Any) -> None:
    """Guards `response_format`, streamed or not: the answer is JSON that the schema describes."""
    async with connect(served=ending) as client:
        body = chat(response_format=JSON_SCHEMA, max_tokens=60, temperature=1, seed=3)
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        assert json.loads(answer["choices"][0]["message"]["content"])["a"] in (1, 2)
        text = (await client.post("/v1/chat/completions", json=body | {"stream": True})).text
        chunks = [json.loads(each) for each in events(text)[:-1]]
        streamed = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        assert streamed == answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("outputs", "pattern"), [({"regex": "[ab]{3}c"}, "[ab]{3}c"), ({"choice": ["left", "a.b"]}, r"left|a\.b")]
)
async def test_structured_outputs(connect: Connect, ending: Any, outputs: dict[str, Any], pattern: str) -> None:
    """Guards vLLM's form, in both endpoints."""
    async with connect(served=ending) as client:
        options = {"structured_outputs": outputs, "max_tokens": 40}
        answer = (await client.post("/v1/completions", json=completion(**options))).json()
        assert re.fullmatch(pattern, answer["choices"][0]["text"])
        answer = (await client.post("/v1/chat/completions", json=chat(**options))).json()
        assert re.fullmatch(pattern, answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    "changes",
    [
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "xml"}},
        {"response_format": JSON_SCHEMA, "structured_outputs": {"regex": "a"}},
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"regex": "(a{1000}){1000}"}},
        {"structured_outputs": {"choice": []}},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"1": 101}},
        {"logit_bias": {"999999": 1}},
        {"presence_penalty": 3},
        {"top_logprobs": 21, "logprobs": True},
    ],
)
async def test_what_cannot_be_honoured_is_refused(connect: Connect, changes: dict[str, Any]) -> None:
    """Guards against options that are ignored, or that end the server."""
    async with connect() as client:
        answer = await client.post("/v1/chat/completions", json=chat(**changes))
        assert answer.status_code == 400, answer.text
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200


async def test_logprobs(connect: Connect) -> None:
    """Guards both forms of log-probabilities: one entry per token, the same streamed."""
    async with connect() as client:
        body = chat(logprobs=True, top_logprobs=2)
        content = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["logprobs"]["content"]
        assert len(content) == body["max_tokens"]
        assert all(len(each["top_logprobs"]) == 2 for each in content)
        assert all(each["logprob"] == each["top_logprobs"][0]["logprob"] <= 0 for each in content)  # greedy
        text = (await client.post("/v1/chat/completions", json=body | {"stream": True})).text
        chunks = [json.loads(each)["choices"][0] for each in events(text)[:-1]]
        streamed = [each for chunk in chunks if chunk["logprobs"] for each in chunk["logprobs"]["content"]]
        assert [each["token"] for each in streamed] == [each["token"] for each in content]
        answer = (await client.post("/v1/completions", json=completion(logprobs=1))).json()["choices"][0]
        found = answer["logprobs"]
        assert "".join(found["tokens"]) == answer["text"]
        assert found["text_offset"] == [len("".join(found["tokens"][:i])) for i in range(len(found["tokens"]))]
        assert all(
            math.isclose(max(top.values()), own)
            for top, own in zip(found["top_logprobs"], found["token_logprobs"], strict=True)
        )


async def test_bias_and_penalties_change_the_text(connect: Connect) -> None:
    """Guards options that must reach the sampler."""
    async with connect() as client:
        plain = (await client.post("/v1/completions", json=completion(max_tokens=40))).json()["choices"][0]["text"]
        for changes in ({"logit_bias": {"50": 100}}, {"frequency_penalty": 2, "presence_penalty": 2}):
            changed = (await client.post("/v1/completions", json=completion(max_tokens=40, **changes))).json()
            assert changed["choices"][0]["text"] != plain


async def test_prefixes_are_computed_once(connect: Connect) -> None:
    """Guards shared prompts: the second request reuses the first one's, and its text is that of a fresh server."""
    prompt = [[5 + i % 40 for i in range(70)]]
    async with connect() as client:
        first, second = [(await client.post("/v1/completions", json=completion(prompt))).json() for _ in range(2)]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 48
    assert second["choices"] == first["choices"]


async def test_choices_of_one_prompt_are_not_cached_prompts(connect: Connect) -> None:
    """Guards `cached_tokens`: a prompt that its own first choice computed was not found in the cache."""
    body = completion([[5 + i % 40 for i in range(70)], [9 + i % 30 for i in range(70)]], n=2)
    async with connect() as client:
        first, second = [(await client.post("/v1/completions", json=body)).json()["usage"] for _ in range(2)]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] >= 96
