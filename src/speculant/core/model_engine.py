"""The interface of an engine that serves requests: it opens their texts and passes cached prefixes between them.

`core.engine` is what a round needs; this is what surrounds the rounds: preparing requests, prefix caches, measuring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from speculant.core.drafter import EncoderSource
from speculant.core.engine import Capabilities, Engine, EngineArray, TargetCache
from speculant.core.prepared_request import PreparedRequest
from speculant.core.tree import UNLIMITED, Int32


@dataclass(frozen=True, slots=True, eq=False)
class MediaPrefix:
    """What identifies a prompt with media, so that prompts with the same media can share a prefix.

    Attributes:
        tokens: Int32[T], one for each row of the prompt.
        digest: digest of all its media.
        end: number of rows up to and including the last media row; a shorter prefix cannot be shared.
    """

    tokens: Int32
    digest: str
    end: int


class RequestCache(TargetCache, Protocol):
    """The cache of one request. Its contents outlive it as a *kept cache*, in a format of the engine's own."""

    @property
    def cache(self) -> Any:
        """The kept cache: keys and values of the committed tokens, which the next turn may begin with; None if none."""
        return None

    @property
    def shares_prefixes(self) -> bool:
        """Whether the text may begin with prefixes cached by other texts; known before its prompt is read."""
        return False

    @property
    def media(self) -> MediaPrefix | None:
        """What identifies the prefixes of a prompt with media; None for text."""
        return None

    def begin_with(self, cache: Any) -> None:
        """Begin the prompt with a kept cache of its first tokens; must be called before `prefill`."""

    def detach(self) -> Any:
        """End the text and return its kept cache, or None if there is none."""


class ModelEngine(Engine, Protocol):
    """Runs passes of one model for requests to it."""

    @property
    def model(self) -> Any:
        """The model that generates text, as an object of the engine's library."""

    @property
    def whole(self) -> Any:
        """The model as it was given, without adapters: `model`, or the multimodal model that contains it."""
        return self.model

    @property
    def name(self) -> str:
        """What messages call the engine."""
        return type(self).__name__

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def device(self) -> Any:
        """The torch device of prompts and logits."""

    @property
    def acceleration(self) -> Any:
        """What other engines of the same model may be opened with, as `fast`; None for nothing."""
        return None

    @property
    def rounding(self) -> float | None:
        """The relative rounding error of passes, if it is larger than that of their logits' dtype."""
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the user on the model, its preparation and its drafter."""
        return ()

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Options of requests that the model has values of its own for, by transformers' names; `eos_token_id`, ..."""
        return {}

    @property
    def placeholders(self) -> Sequence[int]:
        """Ids of the tokens that represent media in prompts."""
        return ()

    @property
    def changes(self) -> int:
        """Number of times the model was found to have changed, which invalidates earlier caches."""
        return 0

    @property
    def texts_at_once(self) -> int:
        """Maximum number of texts that may be decoded in turns."""
        return UNLIMITED

    @property
    def works_in_thread(self) -> bool:
        """Whether the calling thread does the work of passes, so that its CPU time tells what they cost."""
        return False

    @property
    def latency_facts(self) -> Sequence[object]:
        """What the latency of passes depends on; () if measured latencies of the model are not to be stored."""
        return ()

    @property
    def reads_padding(self) -> bool:
        """Whether padding in front of a text affects its tokens."""
        return False

    def probe(self, *, rows: int = 0) -> None:
        """Check that verification passes reproduce the model's logits; restrict the capabilities to those that do.

        Does nothing if the model is unchanged since the last call.

        Args:
            rows: maximum number of rows of a pass.

        Raises:
            UnsupportedError: drafts cannot be verified, and the engine was told to refuse such a model.
            OutOfMemoryError: the device is full.
        """

    def open(
        self, ids: EngineArray, *, cache: Any = None, padding: EngineArray = None, positions: EngineArray = None
    ) -> RequestCache:
        """Return the cache of a new text; apart from the given kept cache, none of its prompt is read yet.

        Args:
            ids: Int64[1, T], the whole prompt, including its cached part.
            cache: a kept cache of its first tokens, fewer than T; None for none.
            padding: Int64[1, T], 0 at padding, or None.
            positions: positions Int64[1, T], or those of the uncached part; None to count the unpadded tokens.

        Raises:
            UnsupportedError: the engine does not support this kind of cache, padding or positions.
        """

    def prepare(
        self,
        ids: EngineArray,
        *,
        max_new_tokens: int,
        cache: Any,
        options: Mapping[str, Any],
        constrained: bool = False,
    ) -> PreparedRequest:
        """Return a request with all its options read.

        Args:
            ids: Int64[1, T], the prompt.
            max_new_tokens: maximum number of new tokens.
            cache: a kept cache of the first tokens, or None.
            options: options of transformers' `generate` that were given, by name; a temperature of 0 means greedy.
            constrained: whether a constraint decides where the text ends.

        Raises:
            UsageError: an option is invalid.
            UnsupportedError: an option is not supported, or the model can only be decoded by its own `generate`.
        """

    def contains(self, model: Any) -> bool:
        """Return whether another model that writes a text is a part of this one, see `PreparedRequest.model`."""
        return False

    def obstacle(self, prepared: PreparedRequest) -> str:
        """Return why this request cannot use drafts although the model can; "" if it can."""
        return ""

    def find_source(self, prepared: PreparedRequest) -> EncoderSource | None:
        """Return what the model's encoder has read, for draft models; None if it has none."""
        return None

    def open_prepared(self, prepared: PreparedRequest, *, plain: bool) -> RequestCache:
        """Return the cache of a prepared request; a `plain` one is decoded without drafts, as by the model itself.

        Raises:
            UnsupportedError: it asks for something that is not decoded here.
        """

    def crop(self, cache: Any, length: int) -> int:
        """Truncate a kept cache to its first tokens, for a prompt that shares only those; return how many remain."""

    def reusable(self, cache: Any, length: int) -> int:
        """Return how many of the first `length` tokens of a kept cache a prompt can begin with."""

    def copy_prefix(self, cache: Any, length: int, *, room: int) -> Any:
        """Return a copy of the first tokens of a kept cache with capacity for `room` tokens; None if it is gone.

        Raises:
            OutOfMemoryError: the device is full.
        """

    def held_bytes(self, cache: Any) -> int:
        """Return the size of a kept cache in bytes."""

    def compact_cache(self, cache: Any) -> Any:
        """Return the kept cache, or a smaller copy if much of its memory is unused."""
