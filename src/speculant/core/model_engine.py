"""The contract of an engine that serves requests: it opens their texts, and hands what is cached from one to another.

`core.engine` is what a round needs; this is what stands around rounds: preparing a request, prefix caches, measuring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from speculant.core.engine import Array, Capabilities, Engine, TargetCache
from speculant.core.tree import UNLIMITED, Int32


@dataclass(frozen=True, slots=True, eq=False)
class MediaPrefix:
    """What a prompt with media has in common with others that have the same media.

    Attributes:
        tokens: Int32[T], one for each row of the prompt.
        digest: of all its media.
        end: rows up to and including the last one that stands for media; fewer are no prefix to begin with.
    """

    tokens: Int32
    digest: str
    end: int


class RequestCache(TargetCache, Protocol):
    """The cache of one request. What it holds is kept in a form of the engine's own, a *kept cache* below."""

    @property
    def cache(self) -> Any:
        """The kept cache: keys and values of the committed tokens, which a next turn may begin with."""

    @property
    def shares_prefixes(self) -> bool:
        """Whether the text may begin with what other texts have cached; known before its prompt is read."""

    @property
    def media(self) -> MediaPrefix | None:
        """Of a prompt with media, by which it shares its prefixes; None for text."""

    def begin_with(self, cache: Any) -> None:
        """Begin the prompt with a kept cache of its first tokens; to be called before `prefill`."""

    def detach(self) -> Any:
        """End the text; return its kept cache, None where there is none."""


class ModelEngine(Engine, Protocol):
    """Runs passes of one model for requests to it."""

    @property
    def model(self) -> Any:
        """The model that writes, as the engine's library has it."""

    @property
    def whole(self) -> Any:
        """The model that was given, without adapters: the one that writes, or one with media that holds it."""
        return self.model

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know: of the model, its preparation, its drafter."""

    @property
    def changes(self) -> int:
        """How often the model was found to have changed, so that what was cached before is void."""
        return 0

    @property
    def texts_at_once(self) -> int:
        """How many texts may be decoded in turns."""
        return UNLIMITED

    @property
    def latency_facts(self) -> Sequence[object]:
        """What the latency of passes depends on, beside the model's config, dtype and acceleration."""
        return ()

    def probe(self, *, rows: int = 0) -> None:
        """Check that passes leave the model's logits as they are; narrow the capabilities to those that do.

        Nothing is done where the model is as it was at the last call.

        Args:
            rows: the most that a pass will have.

        Raises:
            UnsupportedError: drafts cannot be verified, and the engine was told to refuse such a model.
            OutOfMemoryError: the device is full.
        """

    def open(self, ids: Array, *, cache: Any = None, padding: Array = None, positions: Array = None) -> RequestCache:
        """Return the cache of a new text, of which nothing but what is given is read yet.

        Args:
            ids: Int64[1, T], the whole prompt, cached part included.
            cache: a kept cache of its first tokens, fewer than T; None for none.
            padding: Int64[1, T], 0 at padding, or None.
            positions: Int64[1, T] or of the uncached part, or None to count the unpadded tokens.

        Raises:
            UnsupportedError: the cache, padding or positions are of a kind that the engine does not take.
        """

    def prepare(self, ids: Array, *, max_new_tokens: int, cache: Any, options: Mapping[str, Any]) -> Any:
        """Return what a request is decoded by: ids, processors, criteria and cache; see `generate_capture.Call`.

        Args:
            ids: Int64[1, T], the prompt.
            max_new_tokens: maximum number of new tokens.
            cache: a kept cache of the first tokens, or None.
            options: of transformers' `generate`, by name.

        Raises:
            UsageError: an option makes no sense.
            UnsupportedError: the model decodes inside its own `generate` only.
        """

    def obstacle(self, prepared: Any) -> str:
        """Return why no drafts can be verified on a prepared request, though the model takes drafts; "" if they can."""
        return ""

    def open_prepared(self, prepared: Any, *, plain: bool) -> RequestCache:
        """Return the cache of a prepared request; a `plain` one is decoded without drafts, as the model does."""

    def crop(self, cache: Any, length: int) -> int:
        """Keep the first tokens of a kept cache, for a prompt that shares only those; return how many were kept."""

    def reusable(self, cache: Any, length: int) -> int:
        """Return how many of the first `length` tokens of a kept cache a prompt can begin with."""

    def copy_prefix(self, cache: Any, length: int, *, room: int) -> Any:
        """Return a copy of the first tokens of a kept cache, with room for so many in all; None where it is gone.

        Raises:
            OutOfMemoryError: the device is full.
        """

    def held_bytes(self, cache: Any) -> int:
        """Return the bytes that a kept cache takes."""

    def compacted(self, cache: Any) -> Any:
        """Return the kept cache, or a smaller copy where much of its memory is unused."""
