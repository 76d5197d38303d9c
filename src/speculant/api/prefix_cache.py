"""Caches of earlier texts, so that prompts which begin alike are computed once: system prompts, earlier turns.

    batch = speculator.batch(8, prefix_cache="1GB")

The cache of every request that ends is kept, up to a number of bytes; the one unused for longest leaves first. A new
prompt begins with a copy of the longest prefix that it shares with a kept text, or with one that is being decoded, so
the original serves any number of requests. What one owner's texts leave is seen by that owner alone, since how much of
a prompt is found tells what others have asked; the bytes are everybody's. Texts with media share with those that have
the same media. Prefixes are found by hashes of their blocks,
as in vLLM (Kwon et al., SOSP 2023, arXiv 2309.06180), and compared token by token before they are used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from speculant.core.byte_size import check_bytes
from speculant.core.errors import UsageError
from speculant.core.model_engine import ModelEngine
from speculant.core.tree import Int32

BLOCK = 16  # tokens; also the fewest that are worth a copy
ROOM = 128  # rows of a copy for what follows its prompt
CANDIDATES = 8  # texts that share as many blocks, of which the one that shares most tokens is taken


@dataclass(slots=True)
class PrefixCacheStats:
    """What a prefix cache did.

    Attributes:
        lookups, hits: prompts that could have begun with a kept prefix, and those that did.
        lookup_tokens: tokens of the prompts that were looked up.
        reused_tokens: tokens of prompts that were copied rather than computed.
        texts, bytes: what is kept now.
        stored, evictions: texts that were kept, and that left for want of room.
    """

    lookups: int = 0
    lookup_tokens: int = 0
    hits: int = 0
    reused_tokens: int = 0
    texts: int = 0
    bytes: int = 0
    stored: int = 0
    evictions: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A kept text: its tokens Int32[T], its cache, the bytes of that, the hashes of its blocks, its owner and media."""

    tokens: Int32
    cache: Any
    size: int
    hashes: list[int]
    owner: str
    media: str


class PrefixCache:
    """Kept caches of one speculator, bounded in bytes. For the thread that decodes; others may read `stats`."""

    def __init__(self, limit: int | float | str = "1GB") -> None:
        """Begin empty.

        Args:
            limit: bytes that kept caches may take, as a number or as text such as "1GB".

        Raises:
            UsageError: it is no number of bytes.
        """
        self.limit = check_bytes(limit, name="prefix_cache")
        self.stats = PrefixCacheStats()
        self._engine: ModelEngine | None = None
        self._changes = 0  # of its model, when the kept caches were computed
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # the one unused for longest first
        self._blocks: dict[int, list[int]] = {}  # the entries that have a block, by its hash
        self._next = 0
        self._own: dict[str, PrefixCacheStats] = {}  # by owner

    def __len__(self) -> int:
        return len(self._entries)

    def attach(self, engine: ModelEngine) -> None:
        """Take the engine whose caches are kept.

        Raises:
            UsageError: it keeps another engine's.
        """
        if self._engine not in (None, engine):
            raise UsageError("this prefix cache holds caches of another model; make one for each speculator.")
        self._engine = engine

    def _drop_other_models(self) -> bool:
        """Forget what was computed before the model was changed, by an adapter, hooks, other weights; say if it was."""
        changes = 0 if self._engine is None else self._engine.changes
        changed = bool(changes != self._changes)
        if changed:
            self.clear()
            self._changes = changes
        return changed

    def clear(self) -> None:
        """Forget everything, as after a change of the model's weights."""
        self._entries.clear()
        self._blocks.clear()
        self._count()

    def stats_of(self, owner: str) -> PrefixCacheStats:
        """Return what it did for one owner."""
        return self._own.setdefault(owner, PrefixCacheStats())

    def known(self, prompt: Int32, *, owner: str = "", media: str = "", minimum: int = BLOCK) -> int:
        """Return how many first tokens of a prompt `copy_prefix` would find in kept texts."""
        self._drop_other_models()
        entries = [self._entries[each] for each in self._candidates(prompt, owner, media)]
        length = max((self._reusable(prompt, entry.tokens, entry.cache) for entry in entries), default=0)
        return length if length >= minimum else 0

    def _reusable(self, prompt: Int32, tokens: Int32, cache: Any) -> int:
        """Return how many tokens of a cached text a prompt can begin with; its own last one is left."""
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
        """Return a copy of the cache of the longest prefix that is known; None where none is long enough.

        Args:
            prompt: Int32[T]; at least its last token is left to be computed.
            active: texts that are being decoded, Int32[t] as far as they are cached, and their caches.
            owner: whose prompt it is; texts of other owners are not looked at.
            media: a digest of what stands in the prompt beside text; nor are texts with others.
            minimum: fewest tokens of a prefix.
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
            if copy is None:  # the engine needed the room
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
        """Keep the cache of a text that has ended, where it fits.

        Args:
            tokens: Int32[T], all that the cache holds.
            cache: of the engine's kind; nobody else goes on using it.
            copy: whether somebody does, so that a copy is to be kept.
            owner: whose text it is.
            media: as in `copy_prefix`.
        """
        assert self._engine is not None
        if self._drop_other_models() or len(tokens) < BLOCK:
            return
        own = [each for each in self._entries.items() if (each[1].owner, each[1].media) == (owner, media)]
        for number, entry in own:
            shared = shared_prefix(tokens, entry.tokens)
            if shared == len(tokens):
                self._entries.move_to_end(number)
                return
            if shared == len(entry.tokens):
                self._drop(number)
        held = self._engine.copy_prefix(cache, len(tokens), room=len(tokens)) if copy else self._engine.compacted(cache)
        size = 0 if held is None else self._engine.held_bytes(held)
        if not size or size > self.limit:
            return
        while self._entries and self.stats.bytes + size > self.limit:
            number, oldest = next(iter(self._entries.items()))
            self._drop(number)
            for stats in (self.stats, self.stats_of(oldest.owner)):
                stats.evictions += 1
        entry = Entry(tokens, held, size, list(block_hashes(tokens, owner, media)), owner, media)
        self._entries[self._next] = entry
        for block in entry.hashes:
            self._blocks.setdefault(block, []).append(self._next)
        self._next += 1
        for stats in (self.stats, self.stats_of(owner)):
            stats.stored += 1
        self._count()

    def _candidates(self, prompt: Int32, owner: str, media: str) -> list[int]:
        """Return the owner's entries that share most blocks with a prompt, the latest ones."""
        found: list[int] = []
        for block in block_hashes(prompt, owner, media):
            if block not in self._blocks:
                break
            found = self._blocks[block]
        alike = [(self._entries[each].owner, self._entries[each].media) == (owner, media) for each in found]
        return [each for each, same in zip(found, alike, strict=True) if same][-CANDIDATES:]

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number)
        for block in entry.hashes:
            self._blocks[block].remove(number)
            if not self._blocks[block]:
                del self._blocks[block]
        self._count()

    def _count(self) -> None:
        for owner, stats in self._own.items():
            sizes = [entry.size for entry in self._entries.values() if entry.owner == owner]
            stats.texts, stats.bytes = len(sizes), sum(sizes)
        self.stats.texts = len(self._entries)
        self.stats.bytes = sum(entry.size for entry in self._entries.values())


def shared_prefix(left: Int32, right: Int32) -> int:
    """Return how many first tokens are the same."""
    size = min(len(left), len(right))
    differ = np.flatnonzero(left[:size] != right[:size])
    return int(differ[0]) if len(differ) else size


def block_hashes(tokens: Int32, owner: str, media: str = "") -> Iterable[int]:
    """Yield a hash for each whole block, of its text's owner and media and all tokens up to its end."""
    found, listed = hash((owner, media)), tokens.tolist()
    for end in range(BLOCK, len(listed) + 1, BLOCK):
        found = hash((found, *listed[end - BLOCK : end]))
        yield found


def open_prefix_cache(given: Any) -> PrefixCache | None:
    """Return what an option names: a PrefixCache, or a new one of so many bytes; None for none."""
    return given if given is None or isinstance(given, PrefixCache) else PrefixCache(given)
