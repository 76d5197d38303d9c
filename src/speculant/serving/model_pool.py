"""The models of a server: the first one is always loaded, further ones are loaded when a request names them.

Models are loaded one at a time, on a thread, while decoding continues. If a model would not fit into the memory limit
with those already loaded, the least recently used one is unloaded after its last text; new requests for it wait until
it is loaded again. Each model has its own thread, prefix cache and memories, so models never share state.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request

from speculant.core.errors import SpeculantError, UsageError
from speculant.options.drafting import AUTOMATIC
from speculant.serving.access import note
from speculant.serving.answers import now
from speculant.serving.errors import SERVER, ApiError
from speculant.serving.metric_families import merged_page
from speculant.serving.responses import ModelCard
from speculant.serving.scoped_metrics import ScopedMetrics
from speculant.serving.served_model import ServedModel
from speculant.serving.streams import while_connected

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.options.serving import ServingOptions

logger = logging.getLogger(__name__)
LOOK = 0.02  # seconds between checks whether a model has become idle


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherModel:
    """A model that is loaded when a request names it.

    Attributes:
        name: the name that clients use.
        parent: name of the model that it is an adapter of; None if it is not an adapter.
        size: estimated size of its weights in bytes.
        load: loads it with a given number of CPU threads; returns it with the settings of its drafter.
    """

    name: str
    parent: str | None = None
    size: int
    load: Callable[[int], tuple[Speculator, Any]]


class _Entry:
    """A model, loaded or not, and its users."""

    def __init__(self, name: str, metrics: ScopedMetrics, source: FurtherModel | None) -> None:
        self.name, self.metrics, self.source = name, metrics, source
        self.size = 0 if source is None else source.size
        self.served: ServedModel | None = None
        self.loading: asyncio.Task[ApiError | None] | None = None
        self.leaving = False  # whether it is being unloaded, so that new requests wait
        self.waiting = self.leases = 0  # requests that wait for it, and that use it besides what it decodes
        self.used = 0.0  # time of the last use
        self.length: int | None = None  # maximum length of its texts, once it has been loaded
        self.takes = ["text"]

    @property
    def ready(self) -> bool:
        return self.served is not None and not self.leaving

    @property
    def busy(self) -> bool:
        return self.leases > 0 or (self.served is not None and self.served.busy)


class ModelPool:
    """Lends models to requests, by name."""

    def __init__(
        self,
        speculator: Speculator,
        settings: ServingOptions,
        *,
        name: str,
        tenants: Sequence[str],
        method_settings: Any = None,
        further: Sequence[FurtherModel] = (),
    ) -> None:
        """Create the pool with its first model.

        Args:
            speculator: the first model; from now on the pool must be its only user.
            settings: settings of the server.
            name: name of the first model.
            tenants: tenants with separate memories and metrics.
            method_settings: settings of the first model's drafter.
            further: models that are loaded on demand.

        Raises:
            UsageError: one of them does not fit into the limit together with the first.
            SpeculantError: the memory cannot be kept as configured.
        """
        self._settings, self._tenants, self._created = settings, tenants, now()
        self._entries = {name: self._entry(name, None)} | {each.name: self._entry(each.name, each) for each in further}
        self._aliases = dict.fromkeys(settings.aliases, name)
        self._first = self._entries[name]
        self._first.size = weight_bytes(speculator)
        limit = settings.models_memory
        for each in further if limit else ():
            if self._first.size + each.size > limit:
                raise UsageError(
                    f"--models-memory {limit >> 20}MiB does not hold '{each.name}' ({each.size >> 20} MiB) beside "
                    f"'{name}' ({self._first.size >> 20} MiB), which stays loaded. Raise it."
                )
        self.first = self._serve(self._first, speculator, method_settings)
        self._first.served = self.first
        self._lock = asyncio.Lock()
        self._threads = 1
        self._stopping = False

    def _entry(self, name: str, source: FurtherModel | None) -> _Entry:
        return _Entry(name, ScopedMetrics(name, self._tenants, prefix=self._settings.metrics_prefix), source)

    def _serve(self, entry: _Entry, speculator: Speculator, method_settings: Any) -> ServedModel:
        served = ServedModel(
            speculator,
            self._settings if entry.source is None else own_settings(self._settings, entry.source),
            name=entry.name,
            metrics=entry.metrics,
            tenants=self._tenants,
            method_settings=method_settings,
        )
        entry.length, entry.takes = served.service.prompts.positions, served.takes
        return served

    @property
    def metrics(self) -> ScopedMetrics:
        """Metrics of the first model, and of the server itself."""
        return self._first.metrics

    @property
    def loaded(self) -> list[ServedModel]:
        """The loaded models, beginning with the first one."""
        return [each.served for each in self._entries.values() if each.served is not None]

    def metrics_page(self, tenant: str) -> bytes:
        """Return the metrics of all models that a tenant may see, in Prometheus' text format."""
        return merged_page([each.metrics.of(tenant).registry for each in self._entries.values()])

    def cards(self) -> list[ModelCard]:
        """Return a card for each name, beginning with the first model's."""
        return [self.card(name) for name in (self._first.name, *self._aliases, *list(self._entries)[1:])]

    def card(self, name: str) -> ModelCard:
        """Return the card of a name.

        Raises:
            ApiError: there is no model of that name.
        """
        entry = self._find(name)
        return ModelCard(
            id=name,
            created=self._created,
            root=entry.name,
            parent=None if entry.source is None else entry.source.parent,
            max_model_len=entry.length,
            modalities=entry.takes,
            loaded=entry.served is not None,
        )

    @asynccontextmanager
    async def lend(self, name: str | None, request: Request) -> AsyncIterator[ServedModel]:
        """Lend the model of a name, loading it first if necessary; None for the first model.

        It stays loaded while it is lent or decodes.

        Raises:
            ApiError: there is no model of that name, or it cannot be loaded, or not in time.
        """
        entry = self._first if name is None else self._find(name)
        if len(self._entries) > 1:
            note(request, model=entry.name)
        if not entry.ready:
            entry.waiting += 1
            try:
                await while_connected(request, self._wait(entry))
            finally:
                entry.waiting -= 1
        served = entry.served
        assert served is not None
        entry.leases += 1
        try:
            yield served
        finally:
            entry.leases -= 1
            entry.used = time.monotonic()

    def _find(self, name: str) -> _Entry:
        entry = self._entries.get(self._aliases.get(name, name))
        if entry is None:
            known = ", ".join(f"'{each}'" for each in (*self._entries, *self._aliases))
            message = f"there is no model '{name[:200]}' here; this server has {known}."
            raise ApiError(404, message, param="model", code="model_not_found")
        return entry

    async def _wait(self, entry: _Entry) -> None:
        """Wait until a model can be used."""
        until = time.monotonic() + self._settings.request_seconds
        while not entry.ready:
            if self._stopping:
                raise ApiError(503, "the server is shutting down.", type=SERVER, code="shutting_down")
            if entry.loading is None or entry.loading.done():
                entry.loading = asyncio.create_task(self._load(entry))
            loading = entry.loading
            await asyncio.wait({loading}, timeout=max(0.0, until - time.monotonic()))
            if not loading.done():
                message = f"the model '{entry.name}' could not be loaded in time: others are in use. Try again."
                raise ApiError(503, message, type=SERVER, code="loading", headers={"Retry-After": "5"})
            if error := loading.result():
                raise error

    async def _load(self, entry: _Entry) -> ApiError | None:
        """Load a model; return why it could not be loaded, None if it was."""
        async with self._lock:
            if entry.ready or self._stopping:
                return None
            assert entry.source is not None
            await self._make_room(entry)
            began, loop = time.monotonic(), asyncio.get_running_loop()
            try:
                served = await asyncio.to_thread(self._open, entry, entry.source, loop)
            except Exception as error:
                known = isinstance(error, SpeculantError)
                logger.error("the model '%s' was not loaded: %s", entry.name, error, exc_info=None if known else error)
                entry.metrics.unwatch()
                reason = str(error) if known else "the server's log says why."
                message = f"the model '{entry.name}' could not be loaded: {reason}"
                return ApiError(503, message, type=SERVER, code="load_failed")
            served.keep()
            entry.served, entry.used, entry.leaving = served, time.monotonic(), False
            facts = {"model": entry.name, "seconds": round(time.monotonic() - began, 2), "bytes": entry.size}
            logger.info("model loaded", extra={"facts": facts})
            return None

    def _open(self, entry: _Entry, source: FurtherModel, loop: asyncio.AbstractEventLoop) -> ServedModel:
        """Load a model and start its thread; called on a separate thread."""
        speculator, method_settings = source.load(self._threads)
        entry.size = weight_bytes(speculator) or source.size
        served = self._serve(entry, speculator, method_settings)
        served.start(loop)
        return served

    async def _make_room(self, entry: _Entry) -> None:
        """Unload models until `entry` fits together with the remaining ones."""
        limit = self._settings.models_memory
        while limit and entry.size + sum(each.size for each in self._further()) + self._first.size > limit:
            others = sorted(self._further(), key=lambda each: (each.busy, each.used))
            if not others:
                return  # larger than estimated, but only the first model is left besides it
            chosen = next((each for each in others if not each.waiting), None)
            if chosen is not None:
                await self._unload(chosen)
            else:  # requests that waited for them are about to continue
                await asyncio.sleep(LOOK)

    def _further(self) -> Iterator[_Entry]:
        return (each for each in self._entries.values() if each.source is not None and each.served is not None)

    async def _unload(self, entry: _Entry) -> None:
        """Unload a model once its last text has ended."""
        entry.leaving = True
        while entry.busy:
            await asyncio.sleep(LOOK)
        served, entry.served = entry.served, None
        assert served is not None
        await served.stop(0)
        served.speculator.close()
        entry.metrics.unwatch()
        entry.leaving = False
        del served
        await asyncio.to_thread(_collect)
        logger.info("model unloaded", extra={"facts": {"model": entry.name, "bytes": entry.size}})

    def start(self) -> None:
        """Start decoding; called on the event loop."""
        import torch

        self._threads = torch.get_num_threads()
        self.first.start(asyncio.get_running_loop())
        self.first.keep()

    async def stop(self) -> None:
        """Stop all models; texts being decoded may finish within the configured time."""
        self._stopping = True
        async with self._lock:  # waits for a load in progress
            await asyncio.gather(*(each.stop(self._settings.drain_seconds) for each in self.loaded))
        for entry in self._further():
            assert entry.served is not None
            entry.served.speculator.close()


def weight_bytes(speculator: Speculator) -> int:
    """Return the size of a model's weights in bytes; 0 if another library holds them."""
    from speculant.api.engines import find_engine

    return find_engine(speculator.model).weight_bytes(speculator.model)


def own_settings(settings: ServingOptions, source: FurtherModel) -> ServingOptions:
    """Return the server's settings with the files of a further model.

    Its memory is saved next to the first model's. Corpora and bases that are named belong to one tokenizer, which only
    adapters share.
    """
    memory, corpus, base = settings.memory, settings.corpus, settings.base
    if memory is not None:
        memory = memory.with_name(f"{memory.stem}.{quote(source.name, safe='')}{memory.suffix}")
    if source.parent is None:
        corpus, base = None, base if base == AUTOMATIC else ()
    return replace(settings, memory=memory, corpus=corpus, base=base)


def _collect() -> None:
    """Free a model that only cyclic references keep alive."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
