"""How requests of a batch share what their texts begin with: each begins with cached rows, and leaves its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from speculant.api.prefix_cache import BLOCK, PrefixCache
from speculant.api.result import Generation
from speculant.core.errors import OutOfMemoryError


class PrefixSharing:
    """The way between the requests of a batch and its prefix cache.

    Attributes:
        cache: where prefixes are kept, or None to share nothing.
    """

    def __init__(self, cache: PrefixCache | None, *, keep_caches: bool) -> None:
        """Take the cache, and whether results hold caches that their users may change."""
        self.cache, self._keep_caches = cache, keep_caches

    def known(self, generation: Generation) -> int:
        """Return how many tokens of a prompt are cached."""
        if self.cache is None or not generation.takes_prefix:
            return 0
        return self.cache.known(generation.prompt, **_scope(generation))

    def begin(self, generation: Generation, admitted: Iterable[Generation]) -> None:
        """Let a prompt begin with what is cached of it already, also by requests that are being decoded."""
        prefixes, sequence, target = self.cache, generation.sequence, generation.target
        if prefixes is None or not generation.takes_prefix:
            return
        active = [(each.cached(), each.target.cache) for each in admitted if each.shareable and each.shares(generation)]
        try:
            found = prefixes.copy_prefix(generation.prompt, active, **_scope(generation))
        except OutOfMemoryError:
            prefixes.clear()  # what is kept must not stand in the way of what is asked for
            return
        if found is not None:
            target.begin_with(found)
            generation.result.cache = found
            sequence.stats.prompt_tokens, sequence.stats.reused_tokens = target.unread, target.length

    def keep(self, generation: Generation) -> None:
        """Keep the cache of a request that leaves, for prompts that begin like its text."""
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
    """Return whose texts a prompt may begin with, and with how many tokens of them at least."""
    media = generation.target.media
    if media is None:
        return {"owner": generation.owner}
    return {"owner": generation.owner, "media": media.digest, "minimum": max(BLOCK, media.end)}
