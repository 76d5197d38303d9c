"""Streams whose client leaves; test_connection.py has those whose client does not read."""

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


async def test_a_client_that_leaves_ends_the_stream() -> None:
    """Nothing more is sent once the client has gone."""
    sent, exchange = list[bytes](), _exchange()

    async def endless() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def left() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    await EventStream(endless(), exchange, failed=lambda _: b"")({}, left, send)
    assert sent == [b""]
    with pytest.raises(Exception, match="closed"):
        await exchange.get()
