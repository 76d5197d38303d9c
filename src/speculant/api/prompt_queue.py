"""Selects which prompts of a batch are read next, and how much of them.

A pass between two rounds reads at most one chunk, so texts that are being decoded never wait for more. The prompt with
the fewest tokens left comes first: a short one waits for a chunk of a long one that is being read, not for all of it
(shortest remaining time first). To prevent starvation of long prompts, every fourth pass reads the prompt that has
waited longest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from speculant.api.prefix_cache import BLOCK, shared_prefix
from speculant.api.result import Generation

AGED = 4  # one pass in this many reads the least recently read prompt
CPU_CHUNK = 128  # tokens per pass, for which other texts wait; on CPUs larger passes are hardly cheaper per token
GPU_CHUNK = 512  # smaller passes leave the device idle


class PromptQueue:
    """The prompts that are not read yet, ordered by when they were last read."""

    def __init__(self, chunk: int, *, begin: Callable[[Generation], None]) -> None:
        """Create an empty queue.

        Args:
            chunk: maximum tokens per pass.
            begin: lets a prompt start with its cached rows; called before it is read.
        """
        self._chunk, self._begin = chunk, begin
        self._unread: list[Generation] = []
        self._cached: dict[Generation, int] = {}  # prompt tokens available in the prefix cache
        self._passes = 0

    def add(self, generation: Generation, *, cached: int = 0) -> None:
        """Add a prompt with `cached` tokens in the prefix cache."""
        self._unread.append(generation)
        self._cached[generation] = cached

    def remove(self, generation: Generation) -> None:
        """Remove a prompt that is read, failed or was removed; unknown prompts are ignored."""
        if generation in self._cached:
            self._unread.remove(generation)
            del self._cached[generation]

    def next(self) -> list[tuple[Generation, int]]:
        """Return the prompts of the next pass, with the number of tokens to read of each; empty if there are none.

        Only unread prompts join a pass, and only whole, so that a failed pass costs little. One that shares a prefix
        with another of the pass waits for the next one and reuses those rows.
        """
        chosen, count, maximum = list[tuple[Generation, int]](), 0, self._chunk
        for generation in self._order_prompts():
            if self._waits(generation, [each for each, _ in chosen]):
                continue
            if not generation.target.length:
                self._begin(generation)
            left, maximum = generation.target.unread, min(maximum, generation.chunk or maximum)
            if chosen and (count + left > maximum or _begun(generation) or _begun(chosen[0][0])):
                break
            chosen.append((generation, min(left, maximum)))
            count += chosen[-1][1]
        self._passes += bool(chosen)
        for generation, _ in chosen:
            self._unread.remove(generation)
            self._unread.append(generation)
        return chosen

    def _order_prompts(self) -> list[Generation]:
        """Return the prompts in their current order."""
        ordered = sorted(self._unread, key=self._left)
        if self._passes % AGED == AGED - 1 and self._unread:
            ordered.remove(self._unread[0])
            ordered.insert(0, self._unread[0])
        return ordered

    def _left(self, generation: Generation) -> int:
        return generation.target.unread - (0 if generation.target.length else self._cached[generation])

    def _waits(self, generation: Generation, chosen: Sequence[Generation]) -> bool:
        """Return whether another prompt with a shared prefix is about to be read, so that its rows should be reused."""
        if generation.target.length or not generation.takes_prefix:
            return False
        begun = [each for each in self._unread if _begun(each)]
        return any(_gain(generation, each) >= BLOCK for each in chosen) or any(
            _gain(generation, each) > self._chunk for each in begun
        )


def _gain(generation: Generation, other: Generation) -> int:
    """Return how many rows a prompt could reuse from another that has not read them yet."""
    if not other.target.shares_prefixes or not generation.shares(other):
        return 0
    return shared_prefix(generation.prompt, other.prompt) - other.target.length


def _begun(generation: Generation) -> bool:
    """Return whether part of a prompt was read."""
    return generation.sequence.began is not None
