"""Queue of texts to be embedded: the decoding thread processes them, one pass between two rounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from speculant.api.embeddings import EmbeddedText, Embedder
from speculant.core.errors import UnsupportedError
from speculant.serving.errors import SERVER, ApiError, queue_full

if TYPE_CHECKING:
    from speculant.core.model_engine import ModelEngine


class _Asked:
    """The texts of a request, and the coroutine that waits for them."""

    def __init__(self, texts: Sequence[EmbeddedText], *, seconds: float) -> None:
        self.texts, self.deadline = texts, time.monotonic() + seconds
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[None] = self.loop.create_future()
        self.left = False  # whether nobody waits any more

    def finish(self, error: BaseException | None = None) -> None:
        """Let the request continue; called on the decoding thread."""

        def settle() -> None:
            if self.answer.done():
                return
            if error is None:
                self.answer.set_result(None)
            else:
                self.answer.set_exception(error)

        self.loop.call_soon_threadsafe(settle)


class EmbeddingQueue:
    """Texts to be embedded: `embed` runs on the event loop, everything else on the decoding thread; see `SideWork`."""

    def __init__(self, engine: ModelEngine, *, chunk: int | None, places: int, seconds: float) -> None:
        """Create the queue.

        Args:
            engine: runs the model.
            chunk: maximum number of tokens per pass; None for a number that suits the device.
            places: maximum number of waiting requests.
            seconds: maximum time of a request.
        """
        self.refusal, self._embedder = "", None
        try:
            self._embedder = Embedder(engine, chunk=chunk)
        except UnsupportedError as error:
            self.refusal = str(error)
        self._places, self._seconds, self._used = places, seconds, 0
        self._new: SimpleQueue[_Asked] = SimpleQueue()
        self._asked: list[_Asked] = []

    @property
    def size(self) -> int:
        """Number of dimensions of the vectors; 0 if the model has no embeddings."""
        return 0 if self._embedder is None else self._embedder.size

    async def embed(self, texts: Sequence[EmbeddedText], wake: Callable[[], None]) -> None:
        """Embed texts; `wake` notifies the decoding thread.

        Raises:
            ApiError: the queue is full, or a text failed.
        """
        if self._used >= self._places:
            raise queue_full(self._places, "requests")
        asked = _Asked(texts, seconds=self._seconds)
        self._used += 1
        self._new.put(asked)
        wake()
        try:
            await asked.answer
        finally:
            self._used -= 1
            asked.left = True

    @property
    def waiting(self) -> bool:
        """Whether there is work to do."""
        return bool(self._asked) or not self._new.empty()

    def step(self) -> None:
        """Run a pass, and notify the requests whose texts are complete."""
        assert self._embedder is not None
        self._take_new(self._embedder)
        now = time.monotonic()
        for asked in [each for each in self._asked if each.left or each.deadline < now]:
            message = "the request took longer than the server allows. Send fewer texts."
            self._end(asked, ApiError(504, message, type=SERVER, code="timeout"))
        self._embedder.step()
        for asked in list(self._asked):
            failed = next((text.error for text in asked.texts if text.error is not None), None)
            if failed is not None or all(text.done for text in asked.texts):
                self._end(asked, failed)

    def stop(self, error: BaseException) -> None:
        """End all waiting requests with an error."""
        if self._embedder is not None:
            self._take_new(self._embedder)
        for asked in list(self._asked):
            self._end(asked, error)

    def _take_new(self, embedder: Embedder) -> None:
        while True:
            try:
                asked = self._new.get(block=False)
            except Empty:
                return
            self._asked.append(asked)
            embedder.add(asked.texts)

    def _end(self, asked: _Asked, error: BaseException | None) -> None:
        self._asked.remove(asked)
        if self._embedder is not None and error is not None:
            self._embedder.remove(asked.texts)
        asked.finish(error)
