"""A text in llama.cpp's cache, kept between turns for as long as there is room."""

from __future__ import annotations

import weakref
from typing import Any

from speculant.core.errors import UsageError


class LlamaText:
    """The committed tokens of a text, and where the cache holds them. `Result.cache` of a GGUF model is one.

    Where other texts need the room, a text leaves the cache and is read again when it goes on, so holding many of them
    costs no memory that could run out.

    Attributes:
        tokens: committed, prompt included.
        sequence: its id in the cache; None while it is not there.
        behind: how many of the last tokens that sequence has not read; they are read with what follows.
        open_rows: whether it has rows in the cache that are neither kept nor dropped.
    """

    def __init__(self, owner: Any) -> None:
        """Begin an empty text of a context, `owner`."""
        self.owner = owner
        self.tokens: list[int] = []
        self.sequence: int | None = None
        self.behind = 0
        self.open_rows = False
        self._finalizer: weakref.finalize[..., LlamaText] | None = None

    def get_seq_length(self) -> int:
        """Return how many tokens are committed; the name is that of transformers' caches."""
        return len(self.tokens)

    def crop(self, length: int) -> None:
        """Keep the first tokens.

        Raises:
            UsageError: it is being decoded.
        """
        if self.open_rows:
            raise UsageError("this text is being decoded; crop it between rounds.")
        if length < len(self.tokens):
            self.owner.cut(self, max(0, length))
            del self.tokens[max(0, length) :]

    def on_loss(self, finalizer: Any) -> None:
        """Exchange what runs when nobody holds the text any more; None for nothing."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = finalizer
