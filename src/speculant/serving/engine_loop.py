"""The decoding thread: only it uses the model and the batch.

Requests arrive through a queue and join between rounds; the deltas of a round are handed to the event loop in one call.
The thread survives every error: an error of one request ends that request, and an error of the whole pass, such as a
full device, ends the youngest one, until the others can continue.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, Protocol

from speculant.api.prefix_cache import PrefixCacheStats
from speculant.core.errors import SpeculantError
from speculant.serving.errors import SERVER, ApiError
from speculant.serving.exchange import Delta, Exchange, Ticket
from speculant.serving.places import Places
from speculant.serving.waiting_texts import WaitingTexts

if TYPE_CHECKING:
    from speculant.api.batch import Batch
    from speculant.api.result import Generation
    from speculant.api.speculator import Speculator

_GATHER_SHARE, _MAX_GATHER = 0.03, 0.02  # share of a prompt's time that it may wait for others, and seconds at most

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Is notified of every event; called on the decoding thread, so it must be quick."""

    def admitted(self, ticket: Ticket) -> None:
        """A request left the queue."""

    def added(self, ticket: Ticket, delta: Delta) -> None:
        """A round added to a text; `delta.last` if the text ended."""

    def cancelled(self, ticket: Ticket) -> None:
        """A text was cancelled."""

    def decoded(self, tickets: Sequence[Ticket]) -> None:
        """A round decoded these texts."""


class SideWork(Protocol):
    """Work of the thread besides decoding, done in steps between rounds."""

    @property
    def waiting(self) -> bool:
        """Whether there is something to do."""

    def step(self) -> None:
        """Do one step of the work, about as long as a pass."""

    def stop(self, error: BaseException) -> None:
        """End all waiting work with an error."""


class EngineLoop:
    """Decodes the requests of an event loop.

    Attributes:
        speculator: decodes the requests.
        size: number of requests decoded together.
    """

    def __init__(
        self,
        speculator: Speculator,
        *,
        size: int,
        queue: int,
        seconds: float,
        buffer_tokens: int,
        prefix_cache: int = 0,
        prompt_chunk: int | None = None,
        refusal: str = "",
        side_work: SideWork | None = None,
        observer: Observer,
    ) -> None:
        """Create the loop; `start` starts it.

        Args:
            speculator: decodes the requests.
            size: maximum number of requests decoded together.
            queue: maximum number of further requests that wait.
            seconds: maximum time of a request.
            buffer_tokens: maximum number of unread tokens of a request.
            prefix_cache: size in bytes of the cache of prompt prefixes shared within a tenant; 0 for none.
            prompt_chunk: prompt tokens read between two rounds; None for a number that suits the device.
            refusal: why the model does not decode texts from prompts; "" if it does.
            side_work: other work of the decoding thread.
            observer: notified of every event.

        Raises:
            UnsupportedError: the model cannot decode several texts together.
        """
        self.speculator, self.size = speculator, size
        self._batch = speculator.batch(size, prefix_cache=prefix_cache or None, prompt_chunk=prompt_chunk)
        self._places, self._refusal, self._side_work = Places(size, queue), refusal, side_work
        self._seconds, self._buffer_tokens, self._observer = seconds, buffer_tokens, observer
        self._commands: SimpleQueue[tuple[str, Ticket | None]] = SimpleQueue()
        self._waiting = WaitingTexts()
        self._active: dict[Generation, Ticket] = {}  # oldest first
        self._deltas: list[tuple[Ticket, Delta]] = []
        self._numbers, self._prompt_tokens = itertools.count(), 0
        self._stopping = self._leaving = False  # known to the thread, and to the event loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._threads = 1

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def status(self) -> Literal["loading", "ready", "draining", "failed"]:
        """The status that `/ready` reports."""
        if self._thread is None:
            return "loading"
        if self._leaving:
            return "draining"
        return "ready" if self.alive else "failed"

    @property
    def places_used(self) -> int:
        """How many texts are decoded, wait, or have a place held for them."""
        return self._places.count_used()

    def check_alive(self) -> None:
        """Check that the thread runs, so that work would be done.

        Raises:
            ApiError: the thread has died of an error.
        """
        if self.status == "failed":
            message = "the decoding thread does not run; the server needs a restart."
            raise ApiError(503, message, type=SERVER, code="not_running")

    def prefixes(self, tenant: str | None = None) -> PrefixCacheStats:
        """Return the statistics of the prefix cache, for one tenant or for all."""
        cache = self._batch.prefix_cache
        if cache is None:
            return PrefixCacheStats()
        return cache.stats if tenant is None else cache.stats_of(tenant)

    def list_decoded(self) -> list[Ticket]:
        """Return the texts being decoded."""
        return list(self._active.values())

    def running(self, tenant: str | None = None) -> int:
        """Return the number of texts being decoded, for one tenant or for all."""
        return sum(tenant in (None, ticket.job.tenant) for ticket in self.list_decoded())

    def waiting(self, tenant: str | None = None) -> int:
        """Return the number of waiting texts, for one tenant or for all."""
        return max(0, self._places.count_used(tenant) - self.running(tenant))

    def cached_tokens(self, tenant: str | None = None) -> int:
        """Return the number of cached tokens of the texts being decoded, for one tenant or for all."""
        own = [ticket for ticket in list(self._active.values()) if tenant in (None, ticket.job.tenant)]
        return sum(len(ticket.job.prompt) + (ticket.stats.tokens if ticket.stats else 0) for ticket in own)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; deltas are handed to this event loop."""
        import torch

        self._loop, self._threads = loop, torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="speculant-engine", daemon=True)
        self._thread.start()

    async def stop(self, seconds: float) -> None:
        """Stop: texts being decoded may finish within `seconds`, then they are cancelled."""
        if self._thread is None:
            return
        self._leaving = True
        self._commands.put(("drain", None))
        await asyncio.to_thread(self._thread.join, seconds)
        self._commands.put(("stop", None))
        await asyncio.to_thread(self._thread.join)

    def wake(self) -> None:
        """Wake the thread to look for work besides decoding."""
        self._commands.put(("wake", None))

    def open(self, places: int, *, tenant: str = "") -> Exchange:
        """Return an exchange for `places` texts of a tenant.

        Raises:
            ApiError: too many requests are waiting, the model does not decode texts, or the thread has ended.
        """
        if self._refusal:
            raise ApiError(400, self._refusal, code="unsupported")
        self.check_alive()
        self._places.take(tenant, places)
        return Exchange(
            lambda ticket: self._commands.put(("submit", ticket)),
            lambda ticket: self._commands.put(("cancel", ticket)),
            partial(self._places.release, tenant),
            places=places,
            seconds=self._seconds,
            buffer_tokens=self._buffer_tokens,
        )

    def _run(self) -> None:
        import torch

        torch.set_num_threads(self._threads)  # PyTorch keeps it per thread
        with self._batch as batch:
            while not (self._stopping and not self._active and not self._waiting and not self._has_side_work):
                try:
                    self._listen(batch)
                    self._expire(batch)
                    self._admit(batch)
                    self._step(batch)
                    self._step_side_work()
                except Exception as error:
                    logger.exception("a round failed")
                    self._end_youngest(batch, error)
                self._deliver()

    def _listen(self, batch: Batch) -> None:
        """Process commands; wait for one if there is nothing else to do, not even deltas of cancelled texts.

        The first text after a silence waits a moment for others, which are often sent together: their prompts share a
        pass, or the others would wait for the first one's.
        """
        gathering = 0.0  # time until which further texts are awaited
        while True:
            busy = self._active or self._waiting or self._deltas or self._stopping or self._has_side_work
            left = gathering - time.monotonic() if len(self._waiting) < self.size else 0.0
            try:
                if busy and left > 0:
                    name, ticket = self._commands.get(timeout=left)
                else:
                    name, ticket = self._commands.get(block=not busy)
            except Empty:
                return
            if name == "wake":
                continue
            if ticket is None:
                self._stopping = True
                if name == "stop":
                    for each in [*self._waiting, *self._active.values()]:
                        self._drop(batch, each, _shutting_down())
                    if self._side_work is not None:
                        self._side_work.stop(_shutting_down())
            elif name == "cancel":
                if not ticket.finished:
                    ticket.cancelled = True
                    self._observer.cancelled(ticket)
                    self._drop(batch, ticket, _cancelled_error())
            elif self._stopping:
                self._finish(ticket, Delta(error=_shutting_down()))
            else:
                if not (self._active or self._waiting):
                    gathering = time.monotonic() + min(_MAX_GATHER, _GATHER_SHARE * self._prompt_seconds(batch, ticket))
                self._waiting.add(ticket)

    def _prompt_seconds(self, batch: Batch, ticket: Ticket) -> float:
        """Return how long reading a text's prompt takes, by the prompts read so far; 0 before any."""
        read = self._prompt_tokens
        return batch.stats.prefill_seconds / read * len(ticket.job.prompt) if read else 0.0

    def _expire(self, batch: Batch) -> None:
        now = time.monotonic()
        for ticket in [each for each in (*self._waiting, *self._active.values()) if each.deadline < now]:
            error = ApiError(
                504,
                "the request took longer than the server allows. Ask for fewer tokens.",
                type=SERVER,
                code="timeout",
            )
            self._drop(batch, ticket, error)

    def _admit(self, batch: Batch) -> None:
        while self._waiting and len(self._active) < self.size:
            ticket = self._waiting.take(Counter(each.job.tenant for each in self._active.values()))
            ticket.admitted, ticket.number = time.monotonic(), next(self._numbers)
            ticket.slot = min({*range(self.size)} - {each.slot for each in self._active.values()})
            job = ticket.job
            try:
                generation = batch.add(
                    job.given,
                    plain=job.plain or job.prompt_only,
                    watched=job.watched,
                    tenant=job.tenant,
                    prediction=job.prediction,
                    **job.options,
                )
            except Exception as error:
                if not isinstance(error, SpeculantError):
                    logger.exception("a request could not be prepared")
                self._finish(ticket, Delta(error=error))
                continue
            generation.show_marks(job.marks)
            ticket.stats, ticket.prompt_logprobs = generation.result.stats, generation.result.prompt_logprobs
            self._active[generation] = ticket
            self._prompt_tokens += len(job.prompt)
            self._observer.admitted(ticket)

    def _step(self, batch: Batch) -> None:
        if not self._active:
            return
        rounds = batch.stats.rounds
        decoding = [ticket for generation, ticket in self._active.items() if generation.sequence.active]
        try:
            pieces = batch.step()
        finally:
            if batch.stats.rounds > rounds:  # some steps only read prompts
                self._observer.decoded(decoding)
        last = {generation: place for place, (generation, _) in enumerate(pieces)}  # an earlier step may have failed
        for place, (generation, piece) in enumerate(pieces):
            ticket = self._active.get(generation)
            if ticket is None:  # an earlier piece ended it
                continue
            delta = ticket.take(generation, piece, last=last[generation] == place)
            if delta.error is not None and not isinstance(delta.error, SpeculantError):
                logger.error("a request failed while it was decoded", exc_info=delta.error)
            if delta.last:
                self._leave(batch, generation)
                self._finish(ticket, delta)
            else:
                self._observer.added(ticket, delta)
                self._deltas.append((ticket, delta))

    @property
    def _has_side_work(self) -> bool:
        return self._side_work is not None and self._side_work.waiting

    def _step_side_work(self) -> None:
        """Do a step of the other work; an error in it does not affect the texts."""
        if self._side_work is None or not self._side_work.waiting:
            return
        try:
            self._side_work.step()
        except Exception as error:
            logger.exception("side work of the decoding thread failed")
            self._side_work.stop(error)

    def _end_youngest(self, batch: Batch, error: Exception) -> None:
        """End the youngest request after an error that affects all, so that the others may continue."""
        if self._active:
            self._drop(batch, next(reversed(self._active.values())), error)

    def _drop(self, batch: Batch, ticket: Ticket, error: BaseException) -> None:
        """End a request with an error, whether it waits or is being decoded."""
        self._waiting.discard(ticket)
        for generation in [each for each, own in self._active.items() if own is ticket]:
            self._leave(batch, generation)
        self._finish(ticket, Delta(error=error))

    def _leave(self, batch: Batch, generation: Generation) -> None:
        del self._active[generation]
        try:
            batch.remove(generation)
        except Exception:
            logger.exception("a request did not leave its batch cleanly")

    def _finish(self, ticket: Ticket, delta: Delta) -> None:
        if ticket.finished:
            return
        ticket.finished, ticket.finish_reason = True, delta.finish_reason
        self._observer.added(ticket, delta)
        self._deltas.append((ticket, delta))

    def _deliver(self) -> None:
        """Hand the deltas of a round to the event loop at once."""
        deltas, self._deltas = self._deltas, []
        if deltas and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._receive, deltas)
            except RuntimeError:  # the event loop was closed without `stop`
                self._stopping = True

    def _receive(self, deltas: list[tuple[Ticket, Delta]]) -> None:
        for ticket, delta in deltas:
            if delta.last:
                self._places.release(ticket.job.tenant)
            ticket.exchange.put(ticket, delta)


def _cancelled_error() -> ApiError:
    return ApiError(499, "the request was cancelled.", code="cancelled")


def _shutting_down() -> ApiError:
    return ApiError(
        503, "the server is shutting down.", type=SERVER, code="shutting_down", headers={"Retry-After": "5"}
    )
