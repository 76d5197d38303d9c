"""The order in which the parts of the server begin and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from fastapi import FastAPI

from speculant.serving.answers import Service
from speculant.serving.memory_keeper import MemoryKeeper
from speculant.serving.transcriptions import Transcriber

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


def make_lifespan(
    service: Service, keeper: MemoryKeeper, transcriber: Transcriber, spans: TracerProvider | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return what an application enters as it starts, and leaves as it ends."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        service.engine.start(asyncio.get_running_loop())
        service.grammars.warm_up()
        saving = asyncio.create_task(keeper.run())
        try:
            yield
        finally:
            await service.engine.stop(service.settings.drain_seconds)
            saving.cancel()
            with suppress(asyncio.CancelledError):
                await saving
            await asyncio.to_thread(transcriber.close)
            service.prompts.close()
            service.media.close()
            service.grammars.close()
            await asyncio.to_thread(keeper.close)
            if spans is not None:
                await asyncio.to_thread(spans.shutdown)

    return lifespan
