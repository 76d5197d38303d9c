"""A model that is loaded, and all that belongs to it alone: its thread, encoder, memories, prefix cache, recordings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from speculant.serving.answers import Service, now
from speculant.serving.embedding_queue import EmbeddingQueue
from speculant.serving.engine_loop import EngineLoop
from speculant.serving.grammars import GrammarCompiler
from speculant.serving.media import MediaReader
from speculant.serving.memory_keeper import MemoryKeeper
from speculant.serving.prompts import PromptEncoder
from speculant.serving.reloading import MemoryReloader
from speculant.serving.routing import can_route, route
from speculant.serving.scoped_metrics import ScopedMetrics, watch_engine
from speculant.serving.transcriber import HEARS, Transcriber, hears

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.options.serving import ServingOptions


class ServedModel:
    """The parts of one model.

    Attributes:
        speculator: the model and its drafter; this is its only user.
        service: what endpoints of texts share.
        embeddings, transcriber: what endpoints of vectors and recordings ask.
        drafters: memories by tenant, "" for the shared one.
        keeper, reloader: keep the memories on disk, and read them again.
        metrics: of the model.
        takes: what requests may hold; "transcription" for a model that turns speech into text.
    """

    def __init__(
        self,
        speculator: Speculator,
        settings: ServingOptions,
        *,
        name: str,
        metrics: ScopedMetrics,
        tenants: Sequence[str],
        method_settings: Any = None,
    ) -> None:
        """Put the parts together; `start` begins to decode.

        Args:
            speculator: the model.
            settings: of the server; its files of memories and bases are this model's.
            name: that clients use.
            metrics: of the model.
            tenants: whose memories are kept apart.
            method_settings: of the drafter, for memories that are made for each key.

        Raises:
            SpeculantError: the memory cannot be kept as the settings say.
        """
        self.speculator, self.metrics = speculator, metrics
        self.drafters = route(speculator, tenants=tenants, memory_limit=settings.memory_limit, settings=method_settings)
        self.keeper = MemoryKeeper(
            self.drafters,
            settings.memory,
            corpus=settings.corpus,
            seconds=settings.save_seconds,
            strict=settings.memory_strict,
            metrics=metrics,
        )
        self.reloader = MemoryReloader(speculator, self.drafters, self.keeper, settings, method_settings)
        places = settings.max_concurrency + settings.max_queue
        self.embeddings = EmbeddingQueue(
            speculator.engine, chunk=settings.prompt_chunk or None, places=places, seconds=settings.request_seconds
        )
        engine = EngineLoop(
            speculator,
            size=settings.max_concurrency,
            queue=settings.max_queue,
            seconds=settings.request_seconds,
            buffer_tokens=settings.buffer_tokens,
            prefix_cache=settings.prefix_cache,
            prompt_chunk=settings.prompt_chunk or None,
            refusal=HEARS if hears(speculator) else "",
            beside=self.embeddings,
            observer=metrics,
        )
        media = MediaReader(speculator, settings)
        self.transcriber = Transcriber(speculator, queue=places, seconds=settings.request_seconds)
        self.takes = ["transcription"] if self.transcriber.works else ["text", *media.kinds]
        self.service = Service(
            model=name,
            created=now(),
            engine=engine,
            media=media,
            prompts=PromptEncoder(
                speculator,
                media,
                token_limit=settings.max_prompt_tokens,
                reasoning=settings.reasoning_parser,
                tools=settings.tool_parser,
            ),
            grammars=GrammarCompiler(speculator),
            settings=settings,
            predicts=can_route(speculator),
            max_nodes=speculator.nodes if isinstance(speculator.nodes, int) else speculator.drafter.needs.max_nodes,
        )
        watch_engine(metrics, engine, room=settings.max_concurrency * self.service.longest)
        self._saving: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to decode with the threads that PyTorch has here; what is decoded goes to this event loop."""
        self.service.engine.start(loop)

    def keep(self) -> None:
        """Begin to save memories now and then, and prepare grammars; on the event loop."""
        self.service.grammars.warm_up()
        self._saving = asyncio.create_task(self.keeper.run())

    async def stop(self, seconds: float) -> None:
        """End: texts that are decoded may do so within so many seconds; then what was learned is saved."""
        service = self.service
        await service.engine.stop(seconds)
        if self._saving is not None:
            self._saving.cancel()
            with suppress(asyncio.CancelledError):
                await self._saving
        await asyncio.to_thread(self.transcriber.close)
        service.prompts.close()
        service.media.close()
        service.grammars.close()
        await asyncio.to_thread(self.keeper.close)
