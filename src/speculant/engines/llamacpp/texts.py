"""A text in llama.cpp's cache, kept between turns while there is room."""

from __future__ import annotations

import weakref
from typing import Any

from speculant.core.errors import UsageError


class LlamaText:
    """The committed tokens of a text, and their place in the cache. It is the `Result.cache` of a GGUF model.

    If other texts need the room, a text is evicted and reread when it continues, so holding many of them costs no
    memory.

    Attributes:
        tokens: committed tokens, including the prompt.
        sequence: its id in the cache; None while it is evicted.
        behind: number of the last tokens that the sequence has not read; they are read with the following ones.
        open_rows: whether it has rows in the cache that are neither kept nor dropped.
    """

    def __init__(self, owner: Any) -> None:
        """Create an empty text in a context, `owner`."""
        self.owner = owner
        self.tokens: list[int] = []
        self.sequence: int | None = None
        self.behind = 0
        self.open_rows = False
        self._finalizer: weakref.finalize[..., LlamaText] | None = None

    def get_seq_length(self) -> int:
        """Return the number of committed tokens; named as in transformers' caches."""
        return len(self.tokens)

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens.

        Raises:
            UsageError: it is being decoded.
        """
        if self.open_rows:
            raise UsageError("this text is being decoded; crop it between rounds.")
        if length < len(self.tokens):
            self.owner.cut(self, max(0, length))
            del self.tokens[max(0, length) :]

    def on_loss(self, finalizer: Any) -> None:
        """Replace the finalizer that runs when the text is garbage-collected; None for none."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = finalizer
