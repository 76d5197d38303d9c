"""The order in which the parts of the server begin and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI

from speculant.serving.model_pool import ModelPool

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


def make_lifespan(
    models: ModelPool, spans: TracerProvider | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return what an application enters as it starts, and leaves as it ends."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        models.start()
        try:
            yield
        finally:
            await models.stop()
            if spans is not None:
                await asyncio.to_thread(spans.shutdown)

    return lifespan
