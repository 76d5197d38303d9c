"""Several requests decoded together: one target pass a round for all, which join and leave between rounds.

    with speculator.batch() as batch:
        generations = [batch.add(prompt, max_new_tokens=64) for prompt in prompts]
        for generation, piece in batch:
            ...

Each request has its own cache, options, random stream and stop, yields what it would yield alone, and fails alone.
Prompts are read between rounds, long ones in chunks, so that they do not hold up the texts of the others, and short
ones several in a pass (Orca, Yu et al., OSDI 2022).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from speculant.api.engines import AnyEngine
from speculant.api.prefix_cache import BLOCK, PrefixCache, shared_prefix
from speculant.api.result import Generation, Piece, Result
from speculant.core.errors import OutOfMemoryError, SpeculantError, UsageError
from speculant.core.stats import BatchStats
from speculant.decoding.step import Parts, prefill, step

PREFILL_TOKENS = 512  # of prompts, read between two rounds
SHARED_TOKENS = 256  # of several prompts in one pass: more rows gain little, and first tokens come with the pass's end


class BatchError(SpeculantError):
    """Some requests of a batch failed.

    Attributes:
        results: of all requests, in order; a failed one's holds its text until then.
        errors: why requests failed, by their place.
    """

    def __init__(self, results: list[Result], errors: dict[int, BaseException]) -> None:
        place, first = next(iter(errors.items()))
        super().__init__(
            f"{len(errors)} of {len(results)} requests failed, the first of them number {place + 1}: "
            f"{type(first).__name__}: {str(first).rstrip('.')}. The other texts are in the error's `results`."
        )
        self.results, self.errors = results, errors


class Batch:
    """Decodes up to `size` requests at a time; more wait. Not for several threads at once.

    Attributes:
        stats: what happened so far.
        prefix_cache: where prompts find what they share with earlier ones, or None.
    """

    def __init__(
        self,
        prepare: Callable[..., Generation],
        parts: Parts,
        engine: AnyEngine,
        *,
        size: int,
        keep_caches: bool = False,
        prefixes: PrefixCache | None = None,
    ) -> None:
        """Begin an empty batch; `Speculator.batch` is the usual way in.

        Args:
            prepare: returns the request that a prompt and options make.
            parts: what decodes.
            engine: the same as in `parts`.
            size: the most requests in a pass.
            keep_caches: whether results hold their caches for a next turn. Those of many requests fill the memory.
            prefixes: where prompts find what they share with earlier ones, or None.

        Raises:
            UsageError: there would be no room, or `prefixes` are another model's.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"a batch has room for 1 request or more, not {size!r}.")
        self._prepare, self._parts, self._engine = prepare, parts, engine
        self._size, self._keep_caches, self.prefix_cache = size, keep_caches, prefixes
        if prefixes is not None:
            prefixes.attach(engine)
        self._waiting: deque[Generation] = deque()
        self._admitted: list[Generation] = []
        self._pieces: deque[tuple[Generation, Piece]] = deque()  # not handed out yet
        self._interrupt: BaseException | None = None
        self._reading = 0  # tokens of prompts that may be read before the next round
        self.stats = BatchStats(size=size)

    def __len__(self) -> int:
        """Return how many requests have not left yet."""
        return len(self._waiting) + len(self._admitted)

    def add(self, prompt: Any, *, seed: int | None = None, **options: Any) -> Generation:
        """Queue a request.

        Args:
            prompt: as in `Speculator.stream`.
            seed: of its random stream; None draws one from torch's default stream, since a stream shared by several
                texts would give none of them what it yields alone.
            options: as in `Speculator.stream`.

        Raises:
            PromptError, UnsupportedError, UsageError: it cannot be decoded; the others go on.
        """
        if seed is None:
            seed = int(torch.randint(1 << 62, (1,)))
        return self.submit(self._prepare(prompt, seed=seed, **options))

    def submit(self, generation: Generation) -> Generation:
        """Queue a request that is ready.

        Raises:
            UsageError: it is decoded elsewhere, or was.
        """
        generation.sequence.claim()
        self._waiting.append(generation)
        return generation

    def remove(self, generation: Generation) -> None:
        """Retire a request before its end; its text so far is in its result. One that has left stays as it is.

        Raises:
            UsageError: it is another batch's.
        """
        if generation.done:
            return
        if generation not in self._waiting and generation not in self._admitted:
            raise UsageError("this request is not in this batch; remove it from the one that it was added to.")
        self._take(generation)
        self._retire(generation)
        self._raise_interrupt()

    def close(self) -> None:
        """Retire every request."""
        for generation in [*self._waiting, *self._admitted]:
            self._retire(generation)
        self._raise_interrupt()

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[Generation, Piece]]:
        """Decode until every request has left, those added meanwhile too; yield what each round adds to each text.

        Whoever stops early gets the rest of the round's pieces from the next iteration or step.
        """
        while self._pieces or len(self):
            if not self._pieces:
                self._advance()
            if self._pieces:
                yield self._pieces.popleft()

    def step(self) -> list[tuple[Generation, Piece]]:
        """Run a round, then read prompts by a pass; return what was added to each text, an empty piece if one failed.

        Where further prompts are to be read, steps may follow that do that alone.

        Raises:
            OutOfMemoryError: the pass, or the prompt of the next request, does not fit. Nothing is lost: `remove` a
                request, then go on.
            KeyboardInterrupt: it came. The request that it met, if any, has failed; the pieces of the others come with
                the next step.
        """
        self._advance()
        pieces = list(self._pieces)
        self._pieces.clear()
        return pieces

    def run(self, generations: Sequence[Generation]) -> list[Result]:
        """Decode until every request has left; return the results of these.

        Raises:
            BatchError: some failed; it holds all results.
        """
        with self:
            try:
                for _ in self:
                    pass
            except OutOfMemoryError as error:  # nothing here can decide which should go first
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
                chosen = self._next_prompts() if self._reading > 0 else []
                if not chosen:
                    self._round()
                    self._raise_interrupt()
                    self._reading = PREFILL_TOKENS
                    chosen = self._next_prompts()
                self._read_prompts(chosen)
        finally:
            self.stats.seconds += time.perf_counter() - began
            self.stats.notes = list(self._engine.notes)

    def _round(self) -> None:
        self._collect([generation for generation in self._admitted if generation.left])  # an interrupt kept them here
        active = [generation for generation in self._admitted if generation.sequence.active]
        if not active:
            return
        try:
            done = step([generation.sequence for generation in active], self._parts)
            observing = sum(each.observe_seconds for each in done.each)
            if done.each:
                self.stats.add_round(
                    [each.draft for each in done.each],
                    sum(len(each.walk.tokens) for each in done.each),
                    target=done.target_seconds,
                    draft=done.draft_seconds + observing,
                )
        except BaseException as error:
            self._collect(active)
            if self._interrupt is error:
                self._interrupt = None
            raise
        self._collect(active)

    def _read_prompts(self, chosen: Sequence[tuple[Generation, int]]) -> None:
        """Read tokens of prompts by one pass, and take the first tokens of those that are read."""
        began, generations = time.perf_counter(), [generation for generation, _ in chosen]
        self._reading -= sum(count for _, count in chosen)
        try:
            self._read(chosen)
        except OutOfMemoryError as error:
            unread = [each for each in generations if not (each.left or each.sequence.sources)]
            if not any(each.sequence.sources for each in self._admitted):  # nobody will leave and make room for it
                self._fail(unread.pop(0), error)
                self._wait_again(unread)
            else:
                self._wait_again(unread)
                raise
        finally:
            self.stats.tokens += sum(bool(generation.sequence.sources) for generation in generations)
            self.stats.prefill_seconds += time.perf_counter() - began
            self._collect(generations)
        self._raise_interrupt()

    def _read(self, chosen: Sequence[tuple[Generation, int]]) -> None:
        """Read tokens of prompts by one pass; where that fails for several, by one for each."""
        if len(chosen) > 1:
            try:
                prefill([each.sequence for each, _ in chosen], self._parts, most=[count for _, count in chosen])
                return
            except Exception as error:  # what fails alone, too, is reported then
                logging.getLogger(__name__).info("prompts are read one after the other: %s", error)
            except BaseException as error:
                self._interrupt = error  # those that have not begun are read again
                return
        for generation, count in chosen:
            if not generation.left and not generation.sequence.sources:
                try:
                    prefill([generation.sequence], self._parts, most=[count])
                except OutOfMemoryError:
                    raise
                except BaseException as error:
                    self._fail(generation, error)

    def _wait_again(self, generations: Sequence[Generation]) -> None:
        """Queue requests whose prompts found no room; there may be some when others have left."""
        self._reading = 0
        for generation in reversed(generations):
            self._admitted.remove(generation)
            self._waiting.appendleft(generation)

    def _next_prompts(self) -> list[tuple[Generation, int]]:
        """Admit waiting requests; return those whose prompts the next pass reads, and how many tokens of each.

        Prompts join a pass whole, and where nothing was read of them before, so that a failed pass costs little. One
        that begins like another of the pass waits for the next one and takes what they share from there.
        """
        chosen, count, most = list[tuple[Generation, int]](), 0, self._reading
        unread = deque(each for each in self._admitted if not (each.sequence.sources or each.left))
        while True:
            if not unread:
                if not self._waiting or len(self._admitted) >= self._size or self._shares(self._waiting[0], chosen):
                    return chosen
                self._admitted.append(self._waiting.popleft())
                self._begin_with_prefix(self._admitted[-1])
                unread.append(self._admitted[-1])
            generation = unread.popleft()
            left, most = generation.target.unread, min(most, generation.chunk or most)
            if chosen and (count + left > min(most, SHARED_TOKENS) or _begun(generation) or _begun(chosen[0][0])):
                return chosen
            chosen.append((generation, min(left, most)))
            count += chosen[-1][1]

    def _shares(self, generation: Generation, chosen: Sequence[tuple[Generation, int]]) -> bool:
        """Return whether a prompt begins like one that is about to be read, so that their rows should be shared."""
        prompt = generation.sequence.start.prompt
        return self._takes_prefixes(generation) and any(
            shared_prefix(prompt, each.sequence.start.prompt) >= BLOCK for each, _ in chosen
        )

    def _takes_prefixes(self, generation: Generation) -> bool:
        """Return whether a prompt may begin with what is cached of it; not where its drafter needs to see all of it."""
        target = generation.target
        return self.prefix_cache is not None and not self._parts.drafter.needs.prompt and target.shares_prefixes

    def _begin_with_prefix(self, generation: Generation) -> None:
        """Let a prompt begin with what is cached of it already."""
        prefixes, sequence, target = self.prefix_cache, generation.sequence, generation.target
        if prefixes is None or target.length or not self._takes_prefixes(generation):
            return
        active = [(each.cached(), each.target.cache) for each in self._admitted if each.shareable]
        try:
            found = prefixes.copy_prefix(sequence.start.prompt, active)
        except OutOfMemoryError:
            prefixes.clear()  # what is kept must not stand in the way of what is asked for
            return
        if found is not None:
            target.begin_with(found)
            generation.result.cache = found
            sequence.stats.prompt_tokens, sequence.stats.reused_tokens = target.unread, target.length

    def _keep_prefix(self, generation: Generation) -> None:
        """Keep the cache of a request that leaves, for prompts that begin like its text."""
        prefixes, target = self.prefix_cache, generation.target
        if prefixes is None or not generation.shareable:
            return
        target.rollback()
        tokens = generation.cached()
        try:
            prefixes.put(tokens, target.cache if self._keep_caches else target.detach(), copy=self._keep_caches)
        except OutOfMemoryError:
            prefixes.clear()

    def _collect(self, generations: Sequence[Generation]) -> None:
        """Take what a round added to the texts, since the caches have it; retire requests that ended or failed."""
        for generation in generations:
            if generation.done:  # another request's streamer removed it meanwhile, or an interrupt kept it here
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
        """Retire a request because of an error. An interrupt is kept until the others are served."""
        if generation.error is None:
            generation.fail(error)
            self._pieces.append((generation, Piece("", [], [], [])))
        if not isinstance(error, Exception) and self._interrupt is None:
            self._interrupt = error
        self._retire(generation)

    def _retire(self, generation: Generation) -> None:
        generation.done = True
        try:
            generation.sequence.close()
        except BaseException as error:
            self._fail(generation, error)
        self._keep_prefix(generation)
        if not self._keep_caches:
            generation.sequence.cache.release()
            generation.result.cache = None
        for queue in (self._waiting, self._admitted):  # last: what an interrupt left undone is done in the next round
            if generation in queue:
                queue.remove(generation)

    def _raise_interrupt(self) -> None:
        error, self._interrupt = self._interrupt, None
        if error is not None:
            raise error


def _begun(generation: Generation) -> bool:
    """Return whether a part of a prompt was read."""
    return generation.sequence.began is not None
