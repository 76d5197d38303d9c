"""The page: its files and headers, and what it asks for."""

from __future__ import annotations

import asyncio
import hashlib
import json
import posixpath
import re
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

import pytest

from servers import Connect, client_of, completion, events, make_app, make_speculator, running
from speculant.serving.page_files import page_files

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
    assert last.keys() == {"type", "finish_reason", "known"}
    assert (last["type"], last["finish_reason"]) == ("end", "length")
    return between


def text_of(found: list[dict[str, Any]]) -> str:
    """Return the text of rounds."""
    return "".join(token["text"] for each in found for token in each["tokens"])


async def test_files_and_their_headers(connect: Connect) -> None:
    """Guards the strict policy, the types, and that the page's own files name no other host and make no markup."""
    types = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    async with connect() as client:
        for path in page_files():
            answer = await client.get(f"/static/{path}")
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(types[PurePosixPath(path).suffix])
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            if not path.startswith("vendor/"):
                assert "https://" not in answer.text, path
                assert not any(part in answer.text for part in (" style=", "onclick=", "innerHTML", "eval(")), path
        start = await client.get("/")
        assert start.text == page_files()["index.html"].decode()
        for path in ("vendor/marked.LICENSE", "none.js", "../page_files.py", "%2e%2e/keys.py"):
            assert (await client.get(f"/static/{path}")).status_code == 404


async def test_files_that_have_not_changed_are_not_sent_again(connect: Connect) -> None:
    """Guards the tag of a file."""
    async with connect() as client:
        first = await client.get("/static/main.js")
        again = await client.get("/static/main.js", headers={"If-None-Match": first.headers["etag"]})
        other = await client.get("/static/dom.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert not again.content
    assert other.status_code == 200


def test_files_refer_to_files_that_are_there() -> None:
    """Guards imports, style sheets, pictures and elements: whatever a file names is there."""
    sent = page_files()
    start = sent["index.html"].decode()
    for name in re.findall(r'(?:href|src)="/static/([^"]+)"', start):
        assert name in sent
    ids = set(re.findall(r' id="([^"]+)"', start))
    for path, content in sent.items():
        if not path.endswith(".js") or path.startswith("vendor/"):
            continue
        text = content.decode()
        for name in re.findall(r'from "([^"]+)"|import\("([^"]+)"\)', text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), name[0] or name[1]))
            assert target in sent, (path, target)
        assert set(re.findall(r'byId\("([^"]+)"\)', text)) <= ids, path
    assert set(re.findall(r'popovertarget="([^"]+)"', start)) <= ids


def test_vendored_libraries_are_the_pinned_ones() -> None:
    """Guards other projects' files: their hashes are those of `versions.json`, and their licences are beside them."""
    folder = files("speculant.serving") / "page" / "vendor"
    versions = json.loads((folder / "versions.json").read_text())
    sent = {path.removeprefix("vendor/") for path in page_files() if path.startswith("vendor/")}
    assert set(versions) == sent
    for name, entry in versions.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"], name
        assert (folder / name.replace(".js", ".LICENSE")).is_file()


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
    assert state["memory"]["phrases"] == []
    assert state["memory"]["drafts"] == 0


async def test_plain_and_drafts_share_a_batch(connect: Connect) -> None:
    """Guards passes over both kinds of texts: each is what it is alone."""
    async with connect() as client:
        alone = [text_of(await rounds(client, method=method)) for method in ("plain", "drafts")]
        both = await asyncio.gather(*(rounds(client, method=method) for method in ("plain", "drafts")))
    assert [text_of(each) for each in both] == alone
    assert all(not draft["texts"] for each in both[0] for draft in each["drafts"])


async def test_state_shows_the_memory(connect: Connect) -> None:
    """Guards size, hits and phrases of the one memory."""
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
    uses = [phrase["uses"] for phrase in memory["phrases"]]
    assert uses == sorted(uses, reverse=True)
    for phrase in memory["phrases"]:
        assert phrase["text"] in PROMPT + text
        assert len(phrase["text"].split()) > 1
        assert "<s>" not in phrase["text"]
    assert 0 < len(uses) <= 12


async def test_what_the_memory_knew_of_a_text(connect: Connect) -> None:
    """Guards `known` of plain decoding: little before the memory learned the text, all of it afterwards."""
    async with connect() as client:
        shares = []
        for method in ("plain", "plain", "drafts", "plain"):
            answer = await client.post("/page/generate", json=watched(method=method))
            shares.append(json.loads(events(answer.text)[-2])["known"])
    assert shares[0] < 0.2
    assert shares[1] == shares[0]
    assert shares[2] is None
    assert shares[3] == 1


@pytest.mark.parametrize(("options", "known"), [({"memory_scope": "key"}, [1, 1]), ({}, [None, None])])
async def test_texts_of_other_users_are_not_shown(
    model: Any, tokenizer: Any, options: dict[str, Any], known: list[int | None]
) -> None:
    """Guards texts of others: with several keys sizes only, and what was known of a text by one's own memory only."""
    app = make_app(make_speculator(model, tokenizer), api_keys=("one", "two"), **options)
    async with running(app):
        states, shares = [], []
        for key in ("one", "two"):
            async with client_of(app, {"Authorization": f"Bearer {key}"}) as client:
                await rounds(client)
                answer = await client.post("/page/generate", json=watched(method="plain"))
                shares.append(json.loads(events(answer.text)[-2])["known"])
                states.append((await client.get("/page/state")).json()["memory"])
    assert [state["phrases"] for state in states] == [None, None]
    assert all(state["bytes"] > 0 for state in states)
    assert shares == known


async def test_a_key_is_needed(connect: Connect) -> None:
    """Guards keys: the files are open, what they ask for is not."""
    async with connect(api_keys=("secret",)) as client:
        for path in ("/", "/static/main.js", "/static/styles/base.css"):
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
