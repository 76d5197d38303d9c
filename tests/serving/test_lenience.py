"""`--lenient`: unknown parameters are left out and named, in every protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers import Connect, chat, completion
from speculant.serving.lenience import MAX_NAMED, UNUSED

pytestmark = pytest.mark.anyio
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "Once", "cache_control": {}}], "mood": "good"}]


@pytest.mark.parametrize(
    ("path", "body", "unused"),
    [
        ("/v1/completions", completion(max_tokens=2, mirostat=2), "mirostat"),
        (
            "/v1/chat/completions",
            chat(max_tokens=2, mirostat=2) | {"messages": MESSAGES},
            "mirostat, messages.0.mood, messages.0.content.0.cache_control",
        ),
        ("/v1/responses", {"input": "Once", "max_output_tokens": 2, "mirostat": 2}, "mirostat"),
        (
            "/v1/messages",
            {
                "max_tokens": 2,
                "messages": [{"role": "user", "content": "Once", "mood": 1}],
                "thinking": {"type": "adaptive"},
            },
            "thinking, messages.0.mood",
        ),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Once"}], "mood": 1}, "mood"),
        ("/tokenize", {"prompt": "Once", "with_pieces": True}, "with_pieces"),
    ],
)
async def test_unknown_members_are_named(connect: Connect, path: str, body: Any, unused: str) -> None:
    """Guards each protocol: strict servers refuse, lenient ones answer and name what had no effect, streams too."""
    async with connect() as client:
        refused = await client.post(path, json=body)
        assert refused.status_code == 400
        assert "there is no parameter" in refused.text
    async with connect(lenient=True) as client:
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers[UNUSED] == unused
        if path not in ("/tokenize", "/v1/messages/count_tokens"):
            answer = await client.post(path, json=body | {"stream": True})
            assert answer.headers[UNUSED] == unused


async def test_the_text_is_that_without_them(connect: Connect) -> None:
    """Guards what is left out against reaching the prompt; without unknown members there is no header."""
    async with connect(lenient=True) as client:
        answers = [
            await client.post("/v1/chat/completions", json=body)
            for body in (chat("Once"), chat("Once") | {"messages": MESSAGES})
        ]
    assert UNUSED not in answers[0].headers
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert texts[0] == texts[1]


async def test_only_what_changes_no_text_is_left_out(connect: Connect) -> None:
    """Guards known parameters that are refused: those that the text depends on still are."""
    for lenient in (False, True):
        async with connect(lenient=lenient) as client:
            asked = chat(store=True, metadata={"a": "b"}, service_tier="flex", prompt_cache_key="a")
            left_out = await client.post("/v1/chat/completions", json=asked)
            assert left_out.headers[UNUSED] == "store, metadata, service_tier, prompt_cache_key"
    async with connect(lenient=True) as client:
        refused = await client.post("/v1/chat/completions", json=chat(modalities=["audio"]))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "modalities")
        wrong = await client.post("/v1/chat/completions", json=chat(temperature="hot"))
        assert wrong.status_code == 400


async def test_a_value_of_several_types_counts_once(connect: Connect) -> None:
    """Guards unions: members that another type than the one that fits would leave out are not named."""
    tool = {"type": "function", "function": {"name": "see"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool]}, "why": "so"}
    async with connect(lenient=True) as client:
        answer = await client.post("/v1/chat/completions", json=chat(tools=[tool], tool_choice=allowed))
    assert answer.headers[UNUSED] == "tool_choice.why"  # and the model, which has no tools, refuses them
    assert answer.status_code == 400


async def test_names_cannot_break_the_header(connect: Connect) -> None:
    """Guards the response: names are the client's, and a header is one line of limited length."""
    names = ["a\r\nset-cookie: x", "b, c", "ü" * 500, "\ud800", *(f"n{place}" for place in range(30))]
    body = json.dumps(completion(max_tokens=1) | dict.fromkeys(names, 1))
    async with connect(lenient=True) as client:
        answer = await client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert "set-cookie" not in answer.headers
    shown = answer.headers[UNUSED].split(", ")
    assert shown[:2] == ["a%0D%0Aset-cookie%3A%20x", "b%2C%20c"]
    assert len(shown) == MAX_NAMED + 1
    assert shown[-1] == "..."
    assert len(answer.headers[UNUSED]) < 2000
