"""Hostile requests: each is refused with 400, whatever it would take to look at all of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers import Connect, chat, completion
from speculant import Speculator

pytestmark = pytest.mark.anyio
CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
DEEP = "[" * 900 + "]" * 900
DEEP_SCHEMA: Any = {}
for _ in range(300):
    DEEP_SCHEMA = {"type": "array", "items": DEEP_SCHEMA}


def outputs(**options: Any) -> dict[str, Any]:
    """Return a completion that must match something."""
    return completion(structured_outputs=options)


FLOODS = [
    ("unknown fields", CHAT, chat() | {f"field{number}": 1 for number in range(20_000)}),
    ("fields of a message", CHAT, chat(messages=[{"role": "user"} | dict.fromkeys(map(str, range(9999)))])),
    ("wrong messages", CHAT, chat(messages=[{"role": "nobody"}] * 4096)),
    ("wrong parts", CHAT, chat(messages=[{"role": "user", "content": [{"type": 5}] * 4096}])),
    ("wrong tool calls", CHAT, chat(messages=[{"role": "assistant", "tool_calls": [{"id": 5}] * 1024}])),
    ("biases", CHAT, chat(logit_bias={f"x{number}": "a" for number in range(20_000)})),
    ("metadata", CHAT, chat(metadata={f"x{number}": 1 for number in range(20_000)})),
    ("modalities", CHAT, chat(modalities=[1] * 100_000)),
    ("prompts", TEXTS, completion([None] * 100_000)),
    ("empty prompts", TEXTS, completion([[]] * 100_000)),
    ("prompts of no ids", TEXTS, completion([["a"]] * 50_000)),
    ("items", "/v1/responses", {"input": [{"role": "nobody"}] * 4096}),
    ("parts of items", "/v1/responses", {"input": [{"role": "user", "content": [{"type": 5}] * 4096}]}),
    ("metadata of responses", "/v1/responses", {"input": "a", "metadata": {f"x{place}": 1 for place in range(20_000)}}),
    ("tools of responses", "/v1/responses", {"input": "a", "tools": [{"type": 5}] * 50_000}),
    ("tokens", "/detokenize", {"tokens": ["a"] * 100_000}),
    ("page", "/page/generate", {"prompt": "a"} | {f"field{number}": 1 for number in range(20_000)}),
]  # fmt: skip
BOMBS = {
    "counts": outputs(regex="((a{100}){100}){100}"),
    "alternatives": outputs(regex="(a|aa){2000}"),
    "optional parts": outputs(regex="a?" * 20_000),
    "groups": outputs(regex="(" * 30_000 + ")" * 30_000),
    "half a character": outputs(regex="\ud800"),
    "terminals": outputs(grammar="start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(25)) + 'T25: "a"'),
    "rules": outputs(grammar="start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(2000)) + 'r2000: "a"'),
    "left recursion": outputs(grammar="start: start start | start"),
    "intersections": outputs(grammar="start: A\nA: " + " & ".join(f"/(.*{each}.*)/" for each in "abcdefghijklmnop")),
    "half a character in a grammar": outputs(grammar='start: "\ud800"'),
    "schema within schemas": outputs(json=DEEP_SCHEMA),
    "schema of itself": outputs(json={"$ref": "#"}),
    "schema elsewhere": outputs(json={"$ref": "http://127.0.0.1:9/schema"}),
    "product of schemas": outputs(
        json={"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(2)]} for i in range(16)]}
    ),
    "pattern in a schema": outputs(json={"type": "string", "pattern": "^" + "(a|aa)+" * 1000 + "$"}),
}


async def refused(client: Any, name: str, path: str, content: str) -> None:
    """Check that a request is refused by name, and that the next one is served."""
    answer = await client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, (name, answer.text)
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error", name
    assert 0 < len(error["message"]) < 1200, name
    assert (await client.post(TEXTS, json=completion(max_tokens=1))).status_code == 200, name


async def test_floods_of_errors(connect: Connect) -> None:
    """Guards the event loop: the errors of a megabyte of wrong values would take it seconds to collect."""
    async with connect() as client:
        for name, path, body in FLOODS:
            await refused(client, name, path, json.dumps(body))


async def test_grammar_bombs(connect: Connect, ending: Speculator) -> None:
    """Guards the thread that decodes: constraints that are small to write and large to follow."""
    async with connect(served=ending) as client:
        for name, body in BOMBS.items():
            await refused(client, name, TEXTS, json.dumps(body))


@pytest.mark.parametrize("text", ["word " * 200_000, "x" * 1_000_000, "\u4e2d" * 150_000])
async def test_a_megabyte_of_prompt(connect: Connect, tokenizer: Any, monkeypatch: Any, text: str) -> None:
    """Guards the tokenizer's thread: a prompt that is far too long is refused by its beginning."""
    lengths: list[int] = []
    call = type(tokenizer).__call__

    def counted(self: Any, given: str, **options: Any) -> Any:
        lengths.append(len(given))
        return call(self, given, **options)

    monkeypatch.setattr(type(tokenizer), "__call__", counted)
    monkeypatch.setattr(tokenizer, "model_max_length", 1 << 30)  # it warns of texts beyond, and limits nothing
    async with connect() as client:
        for path, body in ((TEXTS, completion(text)), (CHAT, chat(text)), ("/tokenize", {"prompt": text})):
            await refused(client, path, path, json.dumps(body, ensure_ascii=False))
    assert max(lengths) <= 16 * 511


FIELDS = [
    '"tool_choice": ' + DEEP,
    '"audio": ' + DEEP,
    '"max_tokens": ' + "9" * 4000,
    '"temperature": 1e400',
    '"temperature": NaN',
    '"logit_bias": {"5": NaN}',
    '"logit_bias": {"5": -Infinity}',
    '"repetition_penalty": 1e-320',
    '"seed": 9223372036854775807',
    '"user": "\\ud800"',
    '"stop": "\\ud800"',
]


async def test_numbers_and_nesting(connect: Connect) -> None:
    """Guards values that overflow what comes after them."""
    async with connect() as client:
        for field in FIELDS:
            await refused(client, field[:40], CHAT, json.dumps(chat())[:-1] + f", {field}}}")
