"""A tiny model behind the server's application, asked through ASGI without a network."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("httpx2")

import httpx2
from fastapi import FastAPI

from speculant import Speculator
from speculant.options.serving import ServingOptions
from speculant.serving.app import create_app
from speculant.serving.server import Server, bind, make_server, url

MODEL = "tiny"
Connect = Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]


def make_speculator(model: Any, tokenizer: Any, **options: Any) -> Speculator:
    """Return a speculator that drafts from a small memory."""
    torch.set_num_threads(1)
    return Speculator.from_transformers(
        model, tokenizer, **{"method": "mix", "nodes": 6, "memory_limit": 8 << 20, "fast": False} | options
    )


def make_app(speculator: Speculator, **options: Any) -> FastAPI:
    """Return the application with these settings; limits are small."""
    defaults: dict[str, Any] = {"max_new_tokens": 400, "drain_seconds": 20, "memory_limit": "8MiB"}
    return create_app(speculator, ServingOptions(**defaults | options), model=MODEL)


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[None]:
    """Run an application's lifespan."""
    async with app.router.lifespan_context(app):
        yield


@contextmanager
def serving(model: Any, tokenizer: Any, *, buffer: int | None = None, **options: Any) -> Iterator[tuple[Server, str]]:
    """Serve a model on a port, in a thread; yield the server and its address.

    `buffer` bounds what the kernel keeps of an answer, so that it shows what a client does not read.
    """
    app = make_app(make_speculator(model, tokenizer), port=0, **options)
    with on_port(app, ServingOptions(port=0, **options), buffer=buffer) as found:
        yield found


@contextmanager
def on_port(app: FastAPI, settings: ServingOptions, *, buffer: int | None = None) -> Iterator[tuple[Server, str]]:
    """Serve an application on a free port, in a thread; yield the server and its address."""
    ready = threading.Event()
    with bind(settings) as bound:
        if buffer is not None:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        server = make_server(app, settings, ready.set)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
        thread.start()
        try:
            assert ready.wait(60)
            yield server, url(bound)
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


def client_of(app: FastAPI, headers: dict[str, str] | None = None) -> httpx2.AsyncClient:
    """Return a client that asks an application directly."""
    transport = httpx2.ASGITransport(app)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers, timeout=60)


def typed_events(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream; each is named by its type."""
    found = []
    for block in filter(None, text.split("\n\n")):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def chat(text: str = "Once upon a time", **options: Any) -> dict[str, Any]:
    """Return the body of a greedy chat."""
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 12} | options


def completion(prompt: Any = "Once upon a time", **options: Any) -> dict[str, Any]:
    """Return the body of a greedy completion."""
    return {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 12} | options


def events(text: str) -> list[str]:
    """Return the data of server-sent events."""
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line]
