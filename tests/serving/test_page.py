"""The page: its files and headers, and what it asks for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from servers import Connect, client_of, completion, events, make_app, make_speculator, running

pytestmark = pytest.mark.anyio
PROMPT = "Once upon a time"


def watched(**options: Any) -> dict[str, Any]:
    """Return the body of a greedy request of the page."""
    return {"prompt": PROMPT, "max_tokens": 40, "temperature": 0} | options


async def rounds(client: Any, **options: Any) -> list[dict[str, Any]]:
    """Return all events of a text, the first and the last one checked."""
    answer = await client.post("/page/generate", json=watched(**options))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *sent, done = events(answer.text)
    assert done == "[DONE]"
    first, *between, last = [json.loads(each) for each in sent]
    assert first["type"] == "start"
    assert last == {"type": "end", "finish_reason": "length"}
    return between


def text_of(found: list[dict[str, Any]]) -> str:
    """Return the text of rounds."""
    return "".join(token["text"] for each in found for token in each["tokens"])


async def test_files_and_their_headers(connect: Connect) -> None:
    """Guards the strict policy, the types, and that the page names no other host."""
    async with connect() as client:
        for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
            answer = await client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "https://" not in answer.text
            assert not any(part in answer.text for part in ("style=", "onclick=", "innerHTML", "eval("))


async def test_rounds_hold_their_drafts(connect: Connect) -> None:
    """Guards the events: sources agree with the tree's path, and totals with the rounds."""
    async with connect() as client:
        await rounds(client)
        found = await rounds(client)
        text = (await client.post("/v1/completions", json=completion(PROMPT, max_tokens=40))).json()["choices"][0][
            "text"
        ]
    assert text_of(found) == text
    first, *later = found
    assert first["drafts"] == []
    assert [token["source"] for token in first["tokens"]] == ["plain"]
    accepted = 0
    for each in later:
        (draft,) = each["drafts"]
        count = len(draft["texts"])
        assert len(draft["parents"]) == len(draft["weights"]) == count <= 6
        assert all(-1 <= parent < node for node, parent in enumerate(draft["parents"]))
        own = "bonus" if count else "plain"
        assert [token["source"] for token in each["tokens"]] == ["accepted"] * len(draft["path"]) + [own]
        assert [draft["parents"][node] for node in draft["path"]] == [-1, *draft["path"]][: len(draft["path"])]
        assert each["milliseconds"] > 0
        accepted += len(draft["path"])
    assert accepted > 10  # of a text that was decoded before
    total = later[-1]["total"]
    assert total["tokens"] == 40
    assert total["rounds"] == len(later)
    assert total["mat"] == pytest.approx(39 / len(later), abs=1e-3)
    assert sum(total["accepted_by_depth"]) == accepted
    assert total["tokens_per_second"] > 0


@pytest.mark.parametrize("nodes", [6, None])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}])
async def test_plain_leaves_the_text_equal(
    connect: Connect, model: Any, tokenizer: Any, nodes: int | None, options: dict[str, Any]
) -> None:
    """Guards plain decoding: no drafts, the same text, and nothing learned that drafts would profit from."""
    sizes = {} if nodes is None else {"nodes": nodes}
    served = make_speculator(model, tokenizer, **{"nodes": "auto"} | sizes)
    async with connect(served=served) as client:
        plain = await rounds(client, method="plain", **options)
        state = (await client.get("/page/state")).json()
        drafts = await rounds(client, **options)
    assert text_of(plain) == text_of(drafts)
    assert {token["source"] for each in plain for token in each["tokens"]} == {"plain"}
    assert all(not draft["texts"] for each in plain for draft in each["drafts"])
    assert len(plain) == 40
    assert state["memory"]["contexts"] == []
    assert state["memory"]["drafts"] == 0


async def test_plain_and_drafts_share_a_batch(connect: Connect) -> None:
    """Guards passes over both kinds of texts: each is what it is alone."""
    async with connect() as client:
        alone = [text_of(await rounds(client, method=method)) for method in ("plain", "drafts")]
        both = await asyncio.gather(*(rounds(client, method=method) for method in ("plain", "drafts")))
    assert [text_of(each) for each in both] == alone
    assert all(not draft["texts"] for each in both[0] for draft in each["drafts"])


async def test_state_shows_the_memory(connect: Connect) -> None:
    """Guards size, hits and contexts of the one memory."""
    async with connect() as client:
        await rounds(client)
        text = text_of(await rounds(client))
        state = (await client.get("/page/state")).json()
    assert state["model"] == "tiny"
    assert state["method"] == "mix"
    assert state["chat"] is True
    assert state["max_tokens"] == 400
    memory = state["memory"]
    assert memory["bytes"] > 0
    assert memory["limit"] == 8 << 20
    assert 0 < memory["hits"] <= memory["drafts"]
    uses = [context["uses"] for context in memory["contexts"]]
    assert uses == sorted(uses, reverse=True)
    first = memory["contexts"][0]
    assert 1 < first["uses"] <= 80
    assert first["text"] + first["following"][0]["text"] in text


async def test_contexts_of_other_users_are_not_shown(model: Any, tokenizer: Any) -> None:
    """Guards texts of others: with scoped keys, and with several keys on one memory, sizes only."""
    for options in ({"memory_scope": "key"}, {}):
        app = make_app(make_speculator(model, tokenizer), api_keys=("one", "two"), **options)
        async with running(app):
            states = []
            for key in ("one", "two"):
                async with client_of(app, {"Authorization": f"Bearer {key}"}) as client:
                    await rounds(client)
                    states.append((await client.get("/page/state")).json()["memory"])
        assert [state["contexts"] for state in states] == [None, None]
        assert all(state["bytes"] > 0 for state in states)


async def test_a_key_is_needed(connect: Connect) -> None:
    """Guards keys: the files are open, what they ask for is not."""
    async with connect(api_keys=("secret",)) as client:
        for path in ("/", "/page.css", "/page.js"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/page/state")).status_code == 401
        assert (await client.post("/page/generate", json=watched())).status_code == 401
        client.headers["Authorization"] = "Bearer secret"
        assert (await client.get("/page/state")).status_code == 200
        assert text_of(await rounds(client))


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "word " * 2000},
        {"prompt": "\ud800"},
        {"method": "magic"},
        {"max_tokens": 100_000},
        {"seed": -1},
        {"more": 1},
    ],
)
async def test_bad_requests_are_refused(connect: Connect, changes: dict[str, Any]) -> None:
    """Guards the page's endpoint like any other: 400 in OpenAI's form."""
    async with connect() as client:
        content = json.dumps(watched(**changes))
        answer = await client.post("/page/generate", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


async def test_chat_uses_the_template(connect: Connect) -> None:
    """Guards `chat`: the text is that of a chat's answer."""
    async with connect() as client:
        found = await rounds(client, chat=True)
        messages = [{"role": "user", "content": PROMPT}]
        body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 40}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert text_of(found) == answer["choices"][0]["message"]["content"]
