"""Streams whose client does not read, or leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from speculant.serving.exchange import Exchange
from speculant.serving.streams import EventStream

pytestmark = pytest.mark.anyio


def _nothing(_: Any) -> None:
    pass


def _exchange() -> Exchange:
    return Exchange(_nothing, _nothing, _nothing, places=0, seconds=60, buffer_tokens=8)


async def _chunks() -> AsyncIterator[dict[str, Any]]:
    for number in range(3):
        yield {"number": number}


async def _connected() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    """The first part that waits too long ends the stream and closes its exchange."""
    sent, exchange = list[bytes](), _exchange()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if len(sent) == 3:
            await asyncio.Event().wait()

    await EventStream(_chunks(), exchange, stall_seconds=0.01)({}, _connected, send)
    assert sent == [b"", b'data: {"number":0}\n\n', b'data: {"number":1}\n\n']
    with pytest.raises(Exception, match="closed"):
        await exchange.get()


async def test_waiting_for_the_model_is_not_the_clients_fault() -> None:
    """A stream that has nothing to send for longer than a client may take goes on."""
    sent, go_on = list[bytes](), asyncio.Event()

    async def slow() -> AsyncIterator[dict[str, Any]]:
        await go_on.wait()
        yield {"number": 0}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    asyncio.get_running_loop().call_later(0.05, go_on.set)
    await EventStream(slow(), _exchange(), stall_seconds=0.01)({}, _connected, send)
    assert sent == [b"", b'data: {"number":0}\n\n', b"data: [DONE]\n\n", b""]


async def test_a_client_that_leaves_ends_the_stream() -> None:
    """Nothing more is sent once the client has gone."""
    sent, exchange = list[bytes](), _exchange()

    async def endless() -> AsyncIterator[dict[str, Any]]:
        await asyncio.Event().wait()
        yield {}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def left() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    await EventStream(endless(), exchange, stall_seconds=60)({}, left, send)
    assert sent == [b""]
    with pytest.raises(Exception, match="closed"):
        await exchange.get()
