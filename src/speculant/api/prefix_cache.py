"""Caches of earlier texts, so that shared prefixes of prompts are computed once: system prompts, earlier turns.

    batch = speculator.batch(8, prefix_cache="1GB")

The cache of every finished request is kept, up to a number of bytes; the least recently used one is evicted first. A
new prompt starts with a copy of the longest prefix that it shares with a kept text, or with one that is being decoded,
so the original serves any number of requests. Each owner's texts are visible only to that owner, since how much of a
prompt is found reveals what others have asked; the byte limit is common to all. Texts with media share only with those
that have the same media. Prefixes are found by hashes of their blocks, as in vLLM (Kwon et al., SOSP 2023, arXiv
2309.06180), and compared token by token before use.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from speculant.core.byte_size import check_bytes
from speculant.core.errors import UsageError
from speculant.core.model_engine import ModelEngine
from speculant.core.tree import Int32

BLOCK = 16  # tokens per block; also the minimum worth copying
ROOM = 128  # extra rows of a copy for the tokens after its prompt
FREE_PARTS = 10  # a server's cache takes one of so many parts of the free memory
SMALLEST, LARGEST = 256 << 20, 8 << 30  # bytes of such a cache
CANDIDATES = 8  # texts with equally many shared blocks to compare by shared tokens

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PrefixCacheStats:
    """Statistics of a prefix cache.

    Attributes:
        lookups, hits: prompts that were looked up, and those that started with a kept prefix.
        lookup_tokens: tokens of the prompts that were looked up.
        reused_tokens: prompt tokens that were copied rather than computed.
        texts, bytes: current contents.
        stored, evictions: texts that were stored, and that were evicted for lack of space.
        cut: stored texts of which only a prefix fits into the cache.
    """

    lookups: int = 0
    lookup_tokens: int = 0
    hits: int = 0
    reused_tokens: int = 0
    texts: int = 0
    bytes: int = 0
    stored: int = 0
    evictions: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class KeptText:
    """A kept text: its tokens Int32[T], its cache and that cache's bytes, block hashes, owner and media."""

    tokens: Int32
    cache: Any
    size: int
    hashes: list[int]
    owner: str
    media: str


class PrefixCache:
    """Kept caches of one speculator, bounded in bytes. Used by the decoding thread; others may read `stats`."""

    def __init__(self, limit: int | float | str = "1GB") -> None:
        """Create an empty cache.

        Args:
            limit: maximum bytes of kept caches, as a number or as text such as "1GB".

        Raises:
            UsageError: it is not a number of bytes.
        """
        self.limit = check_bytes(limit, name="prefix_cache")
        self.stats = PrefixCacheStats()
        self._engine: ModelEngine | None = None
        self._changes = 0  # the model's change count when the kept caches were computed
        self._entries: OrderedDict[int, KeptText] = OrderedDict()  # least recently used first
        self._blocks: dict[int, dict[int, None]] = {}  # entries by the hashes of their blocks, oldest first
        self._ends: dict[int, dict[bytes, int]] = {}  # entries by their last whole block, and the tokens behind it
        self._next = 0
        self._own: dict[str, PrefixCacheStats] = {}  # by owner

    def __len__(self) -> int:
        return len(self._entries)

    def attach(self, engine: ModelEngine) -> None:
        """Set the engine whose caches are kept.

        Raises:
            UsageError: it already belongs to another engine.
        """
        if self._engine not in (None, engine):
            raise UsageError("this prefix cache holds caches of another model; make one for each speculator.")
        self._engine = engine

    def _drop_other_models(self) -> bool:
        """Drop caches if the model has changed (by adapters, hooks, other weights); return whether it has."""
        changes = 0 if self._engine is None else self._engine.changes
        changed = bool(changes != self._changes)
        if changed:
            self.clear()
            self._changes = changes
        return changed

    def clear(self) -> None:
        """Drop everything, as after a change of the model's weights."""
        for held in (self._entries, self._blocks, self._ends):
            held.clear()
        for stats in (self.stats, *self._own.values()):
            stats.texts = stats.bytes = 0

    def stats_of(self, owner: str) -> PrefixCacheStats:
        """Return the statistics of one owner."""
        return self._own.setdefault(owner, PrefixCacheStats())

    def count_known(self, prompt: Int32, *, owner: str = "", media: str = "", minimum: int = BLOCK) -> int:
        """Return how many leading tokens of a prompt `copy_prefix` would find in kept texts."""
        self._drop_other_models()
        entries = [self._entries[each] for each in self._candidates(prompt, owner, media)]
        length = max((self._reusable(prompt, entry.tokens, entry.cache) for entry in entries), default=0)
        return length if length >= minimum else 0

    def _reusable(self, prompt: Int32, tokens: Int32, cache: Any) -> int:
        """Return how many tokens of a cached text a prompt can reuse; the prompt's last token is excluded."""
        assert self._engine is not None
        return self._engine.reusable(cache, min(shared_prefix(prompt, tokens), len(prompt) - 1))

    def copy_prefix(
        self,
        prompt: Int32,
        active: Iterable[tuple[Int32, Any]] = (),
        *,
        owner: str = "",
        media: str = "",
        minimum: int = BLOCK,
    ) -> Any:
        """Return a copy of the cache of the longest known prefix; None if none is long enough.

        Args:
            prompt: Int32[T]; at least its last token is left to be computed.
            active: texts that are being decoded: their cached tokens Int32[t], and their caches.
            owner: owner of the prompt; texts of other owners are ignored.
            media: digest of the prompt's media; texts with other media are ignored.
            minimum: minimum tokens of a prefix.
        """
        assert self._engine is not None
        self._drop_other_models()
        counted = (self.stats, self.stats_of(owner))
        for stats in counted:
            stats.lookups += 1
            stats.lookup_tokens += len(prompt)
        found: list[tuple[int, int | None, Any]] = []
        for candidate in self._candidates(prompt, owner, media):
            entry = self._entries[candidate]
            found.append((self._reusable(prompt, entry.tokens, entry.cache), candidate, entry.cache))
        found += [(self._reusable(prompt, tokens, cache), None, cache) for tokens, cache in active]
        for length, number, cache in sorted(found, key=lambda each: -each[0]):
            if length < minimum:
                break
            copy = self._engine.copy_prefix(cache, length, room=len(prompt) + ROOM)
            if copy is None:  # the engine needed the memory
                if number is not None:
                    self._drop(number)
                continue
            if number is not None:
                self._entries.move_to_end(number)
            for stats in counted:
                stats.hits += 1
                stats.reused_tokens += length
            return copy
        return None

    def put(self, tokens: Int32, cache: Any, *, copy: bool = False, owner: str = "", media: str = "") -> None:
        """Keep the cache of a finished text, or as much of its beginning as fits.

        Args:
            tokens: Int32[T], all tokens in the cache.
            cache: a cache of the engine's kind, which nothing else uses any more.
            copy: whether something else still uses it, so that a copy must be kept.
            owner: owner of the text.
            media: as in `copy_prefix`.
        """
        assert self._engine is not None
        if self._drop_other_models() or len(tokens) < BLOCK:
            return
        hashes = list(block_hashes(tokens, owner, media))
        if (longer := self._find_longer(tokens, hashes)) is not None:
            self._entries.move_to_end(longer)
            return
        held = (
            self._engine.copy_prefix(cache, len(tokens), room=len(tokens))
            if copy
            else self._engine.compact_cache(cache)
        )
        size = 0 if held is None else self._engine.held_bytes(held)
        if size > self.limit:
            self._put_prefix(tokens, held, size, owner, media)
        if not size or size > self.limit:
            return
        for number in self._find_shorter(tokens, hashes):
            self._drop(number)
        while self._entries and self.stats.bytes + size > self.limit:
            number, oldest = next(iter(self._entries.items()))
            self._drop(number)
            for stats in (self.stats, self.stats_of(oldest.owner)):
                stats.evictions += 1
        self._entries[self._next] = KeptText(tokens, held, size, hashes, owner, media)
        for block in hashes:
            self._blocks.setdefault(block, {})[self._next] = None
        self._ends.setdefault(hashes[-1], {})[_tail(tokens)] = self._next
        self._next += 1
        for stats in (self.stats, self.stats_of(owner)):
            stats.stored += 1
            stats.texts += 1
            stats.bytes += size

    def _put_prefix(self, tokens: Int32, held: Any, size: int, owner: str, media: str) -> None:
        """Keep the beginning of a text of `size` bytes, which do not fit."""
        assert self._engine is not None
        length = self._engine.reusable(held, len(tokens) * self.limit // size // BLOCK * BLOCK)
        if not self.stats.cut:
            logger.warning(
                "the prefix cache of %d MB keeps %d of a text's %d tokens; it would take %d MB.",
                *(self.limit // 10**6, length, len(tokens), -(-size // 10**6)),
            )
        for stats in (self.stats, self.stats_of(owner)):
            stats.cut += 1
        self.put(tokens[:length], held, copy=True, owner=owner, media=media)

    def _candidates(self, prompt: Int32, owner: str, media: str) -> list[int]:
        """Return the owner's most recent entries among those that share the most blocks with a prompt."""
        found: dict[int, None] = {}
        for block in block_hashes(prompt, owner, media):
            if block not in self._blocks:
                break
            found = self._blocks[block]
        entries = ((each, self._entries[each]) for each in reversed(found))  # hashes of two owners might be equal
        recent = (each for each, entry in entries if (entry.owner, entry.media) == (owner, media))
        return list(islice(recent, CANDIDATES))

    def _find_longer(self, tokens: Int32, hashes: Sequence[int]) -> int | None:
        """Return an entry that begins with a text, given the hashes of its blocks: the same text, or a recent one."""
        if (same := self._ends.get(hashes[-1], {}).get(_tail(tokens))) is not None:
            return same
        for number in islice(reversed(self._blocks.get(hashes[-1], {})), CANDIDATES):
            if shared_prefix(tokens, self._entries[number].tokens) == len(tokens):
                return number
        return None

    def _find_shorter(self, tokens: Int32, hashes: Sequence[int]) -> list[int]:
        """Return the entries that a text begins with: the last of their blocks is a block of the text."""
        found = list[int]()
        for end, block in zip(range(BLOCK, len(tokens) + 1, BLOCK), hashes, strict=True):
            if tails := self._ends.get(block):
                beginnings = (
                    tokens[end : end + length].tobytes() for length in range(min(BLOCK, len(tokens) - end + 1))
                )
                found += [tails[each] for each in beginnings if each in tails]
        return found

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number)
        for block in entry.hashes:
            del self._blocks[block][number]
            if not self._blocks[block]:
                del self._blocks[block]
        tails = self._ends[entry.hashes[-1]]
        del tails[_tail(entry.tokens)]
        if not tails:
            del self._ends[entry.hashes[-1]]
        for stats in (self.stats, self.stats_of(entry.owner)):
            stats.texts -= 1
            stats.bytes -= entry.size


def shared_prefix(left: Int32, right: Int32) -> int:
    """Return the number of equal leading tokens."""
    size = min(len(left), len(right))
    differ = np.flatnonzero(left[:size] != right[:size])
    return int(differ[0]) if len(differ) else size


def _tail(tokens: Int32) -> bytes:
    """Return the tokens behind the last whole block of a text."""
    return tokens[len(tokens) // BLOCK * BLOCK :].tobytes()


def block_hashes(tokens: Int32, owner: str, media: str = "") -> Iterable[int]:
    """Yield a hash for each whole block, of the text's owner and media and all tokens up to the block's end."""
    found, listed = hash((owner, media)), tokens.tolist()
    for end in range(BLOCK, len(listed) + 1, BLOCK):
        found = hash((found, *listed[end - BLOCK : end]))
        yield found


def default_limit(free: int) -> int:
    """Return the maximum bytes of a server's kept caches, given the bytes of memory that are free for its model."""
    return min(max(free // FREE_PARTS, SMALLEST), LARGEST)


def open_prefix_cache(given: Any) -> PrefixCache | None:
    """Return the prefix cache for an option: a PrefixCache, or a new one with a number of bytes; None for none."""
    return given if given is None or isinstance(given, PrefixCache) else PrefixCache(given)
