"""`/health`, `/ready` and `/version`."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from servers import Connect, chat, client_of, make_app, running
from speculant import __version__
from speculant.options.serving import ServingOptions
from speculant.serving.loading import answering
from speculant.serving.server import bind, url

pytestmark = pytest.mark.anyio


async def test_version(connect: Connect) -> None:
    """Guards vLLM's form of the version, which needs a key where there are keys."""
    async with connect(api_keys=("secret",)) as client:
        assert (await client.get("/version")).status_code == 401
        answer = await client.get("/version", headers={"Authorization": "Bearer secret"})
    assert answer.json() == {"version": __version__}


async def test_readiness_follows_the_engine(speculator: Any) -> None:
    """Guards `/ready`: loading before the start, ready without a key, draining at a signal and after the end."""
    app = make_app(speculator, api_keys=("secret",))
    client = client_of(app)

    async def status() -> tuple[int, str]:
        answer = await client.get("/ready")
        assert ("Retry-After" in answer.headers) == (answer.status_code == 503)
        return answer.status_code, answer.json()["status"]

    assert await status() == (503, "loading")
    async with running(app):
        assert await status() == (200, "ready")
        app.state.leaving = lambda: True
        assert await status() == (503, "draining")
        assert (await client.get("/health")).status_code == 200
        app.state.leaving = lambda: False
    assert await status() == (503, "draining")


async def test_a_dead_engine_is_neither_ready_nor_healthy(speculator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards both probes against a decoding thread that has ended, and requests, which would wait for ever."""
    from speculant.serving.engine_loop import EngineLoop

    app = make_app(speculator)
    async with running(app):
        monkeypatch.setattr(EngineLoop, "alive", property(lambda _: False))
        client = client_of(app)
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")
        assert (await client.get("/health")).json()["error"]["code"] == "not_running"
        for path, body in (("chat/completions", chat()), ("embeddings", {"input": "A text"})):
            answer = await client.post(f"/v1/{path}", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_running")


def test_requests_are_answered_while_the_model_loads() -> None:
    """Guards the time before the model is there: 503 at once on every path; the socket still listens afterwards."""

    def ask(path: str, body: bytes | None = None) -> tuple[int, Any]:
        with pytest.raises(HTTPError) as found:
            urlopen(Request(url(bound) + path, body), timeout=30)
        with found.value as answer:
            assert answer.headers["Retry-After"] == "1"
            return answer.status, json.load(answer)

    before = threading.active_count()
    with bind(ServingOptions(port=0)) as bound:
        with answering(bound, ServingOptions(port=0)):
            assert ask("/ready") == (503, {"status": "loading"})
            assert ask("/health")[1]["error"]["code"] == "loading"
            assert ask("/v1/chat/completions", b"{}" * 10_000)[1]["error"]["code"] == "loading"
            assert ask("/v1/messages", b"{}")[1]["error"]["type"] == "overloaded_error"
        assert threading.active_count() == before
        with socket.create_connection(bound.getsockname()[:2], timeout=5):
            pass
