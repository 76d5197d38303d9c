"""Several requests decoded together, with one target pass per round; they join and leave between rounds.

    with speculator.batch() as batch:
        generations = [batch.add(prompt, max_new_tokens=64) for prompt in prompts]
        for generation, piece in batch:
            ...

Each request has its own cache, options, random stream and stop conditions, yields the same as if decoded alone, and
fails alone. Prompts are read between rounds, long ones in chunks, so that they delay neither other texts nor short
prompts, and several short ones share a pass (Orca, Yu et al., OSDI 2022).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from speculant.api.options import check_number
from speculant.api.prefix_cache import PrefixCache
from speculant.api.prefix_sharing import PrefixSharing
from speculant.api.prompt_queue import CPU_CHUNK, GPU_CHUNK, PromptQueue
from speculant.api.result import Generation, Piece, Result
from speculant.core.errors import OutOfMemoryError, SpeculantError, UsageError
from speculant.core.model_engine import ModelEngine
from speculant.core.stats import BatchStats
from speculant.decoding.prefill import prefill
from speculant.decoding.step import DecodingComponents, step
from speculant.options.request import RequestKeywords

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BatchError(SpeculantError):
    """Some requests of a batch failed.

    Attributes:
        results: results of all requests, in order; a failed one's has its text up to the failure.
        errors: errors of failed requests, by index.
    """

    def __init__(self, results: list[Result], errors: dict[int, BaseException]) -> None:
        place, first = next(iter(errors.items()))
        super().__init__(
            f"{len(errors)} of {len(results)} requests failed, the first is number {place + 1}: "
            f"{type(first).__name__}: {str(first).rstrip('.')}. The other texts are in the error's `results`."
        )
        self.results, self.errors = results, errors


class Batch:
    """Decodes up to `size` requests at a time; others wait. Not thread-safe.

    Attributes:
        stats: statistics so far.
        prefix_cache: cache of shared prompt prefixes, or None.
    """

    def __init__(
        self,
        prepare: Callable[..., Generation],
        parts: DecodingComponents,
        engine: ModelEngine,
        *,
        size: int,
        keep_caches: bool = False,
        prefixes: PrefixCache | None = None,
        prompt_chunk: int | None = None,
    ) -> None:
        """Create an empty batch; users normally call `Speculator.batch`.

        Args:
            prepare: returns the request for a prompt and options.
            parts: the decoding components.
            engine: the same engine as in `parts`.
            size: maximum requests per pass.
            keep_caches: whether results keep their caches for a next turn. The caches of many requests can fill the
                memory.
            prefixes: cache of shared prompt prefixes, or None.
            prompt_chunk: maximum prompt tokens per pass, which bounds the delay of other texts between two rounds; None
                for a value that suits the device.

        Raises:
            UsageError: a size is too small, or `prefixes` belong to another model.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"a batch must have room for 1 request or more, not {size!r}.")
        check_number("prompt_chunk", prompt_chunk, minimum=1, whole=True)
        self._prepare, self._parts, self._engine = prepare, parts, engine
        self._size, self._keep_caches, self.prefix_cache = size, keep_caches, prefixes
        self._sharing = PrefixSharing(prefixes, keep_caches=keep_caches)
        chunk = prompt_chunk or (CPU_CHUNK if engine.device.type == "cpu" else GPU_CHUNK)
        self._unread = PromptQueue(chunk, begin=lambda generation: self._sharing.begin(generation, self._admitted))
        if prefixes is not None:
            prefixes.attach(engine)
        self._waiting: deque[Generation] = deque()
        self._admitted: list[Generation] = []
        self._pieces: deque[tuple[Generation, Piece]] = deque()  # not yielded yet
        self._interrupt: BaseException | None = None
        self.stats = BatchStats(size=size)

    def __len__(self) -> int:
        """Return the number of requests that have not finished."""
        return len(self._waiting) + len(self._admitted)

    def add(self, prompt: Any, **options: Unpack[RequestKeywords]) -> Generation:
        """Queue a request.

        Args:
            prompt: as in `Speculator.stream`.
            options: as in `Speculator.stream`. Without a `seed`, one is drawn from torch's default stream, since with a
                shared stream no text would be the same as when decoded alone.

        Raises:
            PromptError, UnsupportedError, UsageError: the request cannot be decoded; the others continue.
        """
        if options.get("seed") is None:
            options["seed"] = int(torch.randint(1 << 62, (1,)))
        return self.submit(self._prepare(prompt, **options))

    def submit(self, generation: Generation) -> Generation:
        """Queue a prepared request.

        Raises:
            UsageError: it is or was decoded elsewhere.
        """
        generation.sequence.claim()
        generation.takes_prefix = self._takes_prefix(generation)
        self._waiting.append(generation)
        return generation

    def remove(self, generation: Generation) -> None:
        """Remove a request before its end; its text so far is in its result. A finished request is unchanged.

        Raises:
            UsageError: it belongs to another batch.
        """
        if generation.done:
            return
        if generation not in self._waiting and generation not in self._admitted:
            raise UsageError("this request is not in this batch; remove it from the one that it was added to.")
        self._take(generation)
        self._retire(generation)
        self._raise_interrupt()

    def close(self) -> None:
        """Remove all requests."""
        for generation in [*self._waiting, *self._admitted]:
            self._retire(generation)
        self._raise_interrupt()

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[Generation, Piece]]:
        """Decode until all requests, including added ones, have finished; yield what each round adds to each text.

        If iteration stops early, the rest of the round's pieces are yielded by the next iteration or step.
        """
        while self._pieces or len(self):
            if not self._pieces:
                self._advance()
            if self._pieces:
                yield self._pieces.popleft()

    def step(self) -> list[tuple[Generation, Piece]]:
        """Run a round, then a prompt pass; return what was added to each text, an empty piece for failed ones.

        Raises:
            OutOfMemoryError: the pass, or the prompt of the next request, does not fit. Nothing is lost: `remove` a
                request, then continue.
            KeyboardInterrupt: the interrupted request, if any, has failed; the pieces of the others are returned by the
                next step.
        """
        self._advance()
        pieces = list(self._pieces)
        self._pieces.clear()
        return pieces

    def run(self, generations: Sequence[Generation]) -> list[Result]:
        """Decode until all requests have finished; return the results of these.

        Raises:
            BatchError: some failed; it holds all results.
        """
        with self:
            try:
                for _ in self:
                    pass
            except OutOfMemoryError as error:  # only the caller can decide which one to remove
                for generation in generations:
                    if not generation.done:
                        self._fail(generation, error)
        results = [generation.result for generation in generations]
        errors = {place: each.error for place, each in enumerate(generations) if each.error is not None}
        if errors:
            raise BatchError(results, errors)
        return results

    def _advance(self) -> None:
        began = time.perf_counter()
        try:
            with torch.no_grad():
                self._round()
                self._raise_interrupt()
                self._read_prompts(self._next_prompts())
        finally:
            self.stats.seconds += time.perf_counter() - began
            self.stats.notes = list(self._engine.notes)

    def _round(self) -> None:
        self._collect([generation for generation in self._admitted if generation.left])  # left here by an interrupt
        active = [generation for generation in self._admitted if generation.sequence.active]
        if not active:
            return
        try:
            done = step([generation.sequence for generation in active], self._parts)
            if done.each:
                self.stats.add_round(
                    [each.draft for each in done.each],
                    sum(len(each.walk.tokens) for each in done.each),
                    target=done.target_seconds,
                    draft=done.draft_seconds + done.observe_seconds,
                )
        except BaseException as error:
            self._collect(active)
            if self._interrupt is error:
                self._interrupt = None
            raise
        self._collect(active)

    def _read_prompts(self, chosen: Sequence[tuple[Generation, int]]) -> None:
        """Read prompt tokens in one pass, and take the first tokens of completed prompts."""
        began, generations = time.perf_counter(), [generation for generation, _ in chosen]
        try:
            self._read(chosen)
        except OutOfMemoryError as error:
            unread = [each for each in generations if not (each.left or each.sequence.sources)]
            if any(each.sequence.active for each in self._admitted):
                self._wait_again(unread)
                raise
            if not any(each.sequence.sources for each in self._admitted):  # no running request will free memory for it
                self._fail(unread.pop(0), error)
            self._wait_again(unread)
        finally:
            for generation in generations:
                if generation.sequence.sources:
                    self.stats.tokens += 1
                    self._unread.remove(generation)
            self.stats.prefill_seconds += time.perf_counter() - began
            self._collect(generations)
        self._raise_interrupt()

    def _read(self, chosen: Sequence[tuple[Generation, int]]) -> None:
        """Read prompt tokens in one pass; if that fails for several prompts, read each in its own pass."""
        if len(chosen) > 1:
            try:
                prefill([each.sequence for each, _ in chosen], self._parts, maximum=[count for _, count in chosen])
                return
            except Exception as error:  # a prompt that fails alone too is reported then
                logging.getLogger(__name__).info("prompts are read one after the other: %s", error)
            except BaseException as error:
                self._interrupt = error  # prompts not started are read again
                return
        for generation, count in chosen:
            if not generation.left and not generation.sequence.sources:
                try:
                    prefill([generation.sequence], self._parts, maximum=[count])
                except OutOfMemoryError:
                    raise
                except BaseException as error:
                    self._fail(generation, error)

    def _wait_again(self, generations: Sequence[Generation]) -> None:
        """Requeue requests whose prompts did not fit in memory; they may fit when others have finished."""
        for generation in reversed(generations):
            self._admitted.remove(generation)
            self._unread.remove(generation)
            self._waiting.appendleft(generation)

    def _next_prompts(self) -> list[tuple[Generation, int]]:
        """Admit waiting requests; return the prompts of the next pass, with the number of tokens to read of each."""
        while self._waiting and len(self._admitted) < self._size:
            self._admitted.append(self._waiting.popleft())
            self._unread.add(self._admitted[-1], cached=self._sharing.count_known(self._admitted[-1]))
        return self._unread.next()

    def _takes_prefix(self, generation: Generation) -> bool:
        """Return whether a prompt may start with cached rows; not if all of it must be computed."""
        whole = self._parts.drafter.needs.prompt or generation.sequence.records_prompt
        return self.prefix_cache is not None and not whole and generation.target.shares_prefixes

    def _collect(self, generations: Sequence[Generation]) -> None:
        """Collect what a round added to the texts; remove requests that finished or failed."""
        for generation in generations:
            if generation.done:  # removed meanwhile by another request's streamer, or left by an interrupt
                self._retire(generation)
                continue
            try:
                piece = self._take(generation)
                if piece is not None:
                    generation.put(piece)
            except BaseException as error:
                self._fail(generation, error)
                continue
            if generation.sequence.error is not None:
                self._fail(generation, generation.sequence.error)
            elif generation.sequence.ended:
                self._retire(generation)

    def _take(self, generation: Generation) -> Piece | None:
        piece = generation.take()
        if piece is not None:
            self._pieces.append((generation, piece))
        return piece

    def _fail(self, generation: Generation, error: BaseException) -> None:
        """Remove a request because of an error. An interrupt is stored until the others are served."""
        if generation.error is None:
            self._pieces.append((generation, generation.fail(error)))
        if not isinstance(error, Exception) and self._interrupt is None:
            self._interrupt = error
        self._retire(generation)

    def _retire(self, generation: Generation) -> None:
        generation.done = True
        try:
            generation.sequence.close()
        except BaseException as error:
            self._fail(generation, error)
        self._sharing.keep(generation)
        if not self._keep_caches:
            generation.sequence.cache.release()
            generation.result.cache = None
        self._unread.remove(generation)
        for queue in (self._waiting, self._admitted):  # last, so that after an interrupt the next round completes it
            if generation in queue:
                queue.remove(generation)

    def _raise_interrupt(self) -> None:
        error, self._interrupt = self._interrupt, None
        if error is not None:
            raise error
