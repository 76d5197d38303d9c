"""A loaded model and everything that belongs to it alone: thread, encoder, memories, prefix cache, transcriber."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from speculant.api.prefix_cache import default_limit
from speculant.engines.free_memory import free_memory
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
        speculator: the model and its drafter, which nothing else uses.
        service: state shared by the text endpoints.
        embeddings, transcriber: used by the endpoints for embeddings and recordings.
        drafters: drafters by tenant, "" for the shared one.
        keeper, reloader: save and reload the memories.
        metrics: metrics of the model.
        prefix_cache: maximum bytes of the cache of shared prompt prefixes.
        takes: kinds of input that requests may contain; "transcription" for a speech-to-text model.
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
        """Create the parts; `start` starts decoding.

        Args:
            speculator: the model.
            settings: settings of the server, with this model's files of memories and bases.
            name: the name that clients use.
            metrics: metrics of the model.
            tenants: tenants with separate memories.
            method_settings: settings of the drafter, for memories created per key.

        Raises:
            SpeculantError: the memory cannot be kept as configured.
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
        self.prefix_cache = settings.prefix_cache
        if self.prefix_cache is None:
            self.prefix_cache = default_limit(free_memory(speculator.engine.device))
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
            prefix_cache=self.prefix_cache,
            prompt_chunk=settings.prompt_chunk or None,
            refusal=HEARS if hears(speculator) else "",
            side_work=self.embeddings,
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

    @property
    def busy(self) -> bool:
        """Whether texts or recordings are being decoded or wait."""
        return self.service.engine.places_used > 0 or self.transcriber.busy

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start decoding with the calling thread's number of PyTorch threads; deltas go to this event loop."""
        self.service.engine.start(loop)

    def keep(self) -> None:
        """Start saving memories periodically, and prepare grammars; called on the event loop."""
        self.service.grammars.warm_up()
        self._saving = asyncio.create_task(self.keeper.run())

    async def stop(self, seconds: float) -> None:
        """Stop: texts being decoded may finish within `seconds`; then memories are saved."""
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
