"""Which prompts of a batch are read next, and how much of them.

A pass between two rounds reads at most a chunk, so texts that are being decoded never wait for more than one. The
prompt with the fewest tokens left comes first: a short one waits for the chunk of a long one that is being read, not
for all of it (shortest remaining time first). So that long ones get on however many short ones come, every fourth pass
reads the prompt that has waited longest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from speculant.api.prefix_cache import BLOCK, shared_prefix
from speculant.api.result import Generation

AGED = 4  # one of so many passes goes to the prompt that was read least lately
CPU_CHUNK = 128  # tokens of a pass: on CPUs a token costs the same in larger ones
GPU_CHUNK = 512  # where smaller passes leave the device idle


class PromptQueue:
    """The prompts that are not read yet, in the order in which they were read last."""

    def __init__(self, chunk: int, *, begin: Callable[[Generation], None]) -> None:
        """Begin empty.

        Args:
            chunk: the most tokens of a pass.
            begin: lets a prompt begin with what is cached of it; called before it is read.
        """
        self._chunk, self._begin = chunk, begin
        self._unread: list[Generation] = []
        self._cached: dict[Generation, int] = {}  # tokens that prompts will find in the prefix cache
        self._passes = 0

    def add(self, generation: Generation, *, cached: int = 0) -> None:
        """Take a prompt of which so many tokens are in the prefix cache."""
        self._unread.append(generation)
        self._cached[generation] = cached

    def remove(self, generation: Generation) -> None:
        """Forget a prompt that is read, failed or was removed; nothing happens where it is not here."""
        if generation in self._cached:
            self._unread.remove(generation)
            del self._cached[generation]

    def next(self) -> list[tuple[Generation, int]]:
        """Return the prompts that the next pass reads, and how many tokens of each; empty where there are none.

        Prompts join a pass whole, and where nothing was read of them before, so that a failed pass costs little. One
        that begins like another of the pass waits for the next one and takes what they share from there.
        """
        chosen, count, maximum = list[tuple[Generation, int]](), 0, self._chunk
        for generation in self._ordered():
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

    def _ordered(self) -> list[Generation]:
        """Return the prompts in the order of their turn."""
        ordered = sorted(self._unread, key=self._left)
        if self._passes % AGED == AGED - 1 and self._unread:
            ordered.remove(self._unread[0])
            ordered.insert(0, self._unread[0])
        return ordered

    def _left(self, generation: Generation) -> int:
        return generation.target.unread - (0 if generation.target.length else self._cached[generation])

    def _waits(self, generation: Generation, chosen: Sequence[Generation]) -> bool:
        """Return whether another prompt is about to be read that begins alike, so that the rows should be shared."""
        if generation.target.length or not generation.takes_prefix:
            return False
        begun = [each for each in self._unread if _begun(each)]
        return any(_gain(generation, each) >= BLOCK for each in chosen) or any(
            _gain(generation, each) > self._chunk for each in begun
        )


def _gain(generation: Generation, other: Generation) -> int:
    """Return how many rows a prompt could take from another that has not read them yet."""
    if not other.target.shares_prefixes or not generation.shares(other):
        return 0
    return shared_prefix(generation.prompt, other.prompt) - other.target.length


def _begun(generation: Generation) -> bool:
    """Return whether a part of a prompt was read."""
    return generation.sequence.began is not None
