"""Sharing of prefixes among the requests of a batch: each starts with cached rows, and leaves its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from speculant.api.prefix_cache import BLOCK, PrefixCache
from speculant.api.result import Generation
from speculant.core.errors import OutOfMemoryError


class PrefixSharing:
    """Connects the requests of a batch with its prefix cache.

    Attributes:
        cache: the prefix cache, or None to share nothing.
    """

    def __init__(self, cache: PrefixCache | None, *, keep_caches: bool) -> None:
        """Take the cache, and whether results hold caches that users may modify."""
        self.cache, self._keep_caches = cache, keep_caches

    def count_known(self, generation: Generation) -> int:
        """Return how many tokens of a prompt are cached."""
        if self.cache is None or not generation.takes_prefix:
            return 0
        return self.cache.count_known(generation.prompt, **_scope(generation))

    def begin(self, generation: Generation, admitted: Iterable[Generation]) -> None:
        """Let a prompt start with its cached rows, including those of requests that are being decoded."""
        prefixes, sequence, target = self.cache, generation.sequence, generation.target
        if prefixes is None or not generation.takes_prefix:
            return
        active = [(each.cached(), each.target.cache) for each in admitted if each.shareable and each.shares(generation)]
        try:
            found = prefixes.copy_prefix(generation.prompt, active, **_scope(generation))
        except OutOfMemoryError:
            prefixes.clear()  # kept caches must not prevent the request
            return
        if found is not None:
            target.begin_with(found)
            generation.result.cache = found
            sequence.stats.prompt_tokens, sequence.stats.reused_tokens = target.unread, target.length

    def keep(self, generation: Generation) -> None:
        """Keep the cache of a finished request for prompts with the same prefix."""
        prefixes, target = self.cache, generation.target
        if prefixes is None or not generation.shareable:
            return
        target.rollback()
        tokens, copy = generation.cached(), self._keep_caches
        try:
            media = "" if target.media is None else target.media.digest
            prefixes.put(
                tokens, target.cache if copy else target.detach(), copy=copy, owner=generation.owner, media=media
            )
        except OutOfMemoryError:
            prefixes.clear()


def _scope(generation: Generation) -> dict[str, Any]:
    """Return the owner and media whose texts a prompt may reuse, and the minimum number of tokens."""
    media = generation.target.media
    if media is None:
        return {"owner": generation.owner}
    return {"owner": generation.owner, "media": media.digest, "minimum": max(BLOCK, media.end)}
