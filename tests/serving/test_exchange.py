"""What passes between a request and the thread that decodes."""

from __future__ import annotations

import asyncio

import pytest

from speculant.serving.errors import ApiError
from speculant.serving.exchange import Exchange

pytestmark = pytest.mark.anyio


async def test_readers_of_a_closed_exchange_end() -> None:
    """Guards against a reader that waits for ever: its cancellation can be lost, and nothing more will come."""
    exchange = Exchange(lambda _: None, lambda _: None, lambda _: None, places=1, seconds=1, buffer_tokens=9)
    reading = asyncio.ensure_future(exchange.get())
    await asyncio.sleep(0)
    exchange.close()
    with pytest.raises(ApiError):
        await asyncio.wait_for(reading, 10)
    with pytest.raises(ApiError):
        await exchange.get()
