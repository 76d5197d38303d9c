"""Tokens to text as they come: only whole characters are let out, and the pieces join to the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Detokenizer:
    """Turns committed tokens into text, one piece per token; a piece is empty until its character is whole.

    Attributes:
        marks: texts of special tokens that are part of the text, by their ids; the others are left out.
    """

    def __init__(self, tokenizer: Any, before: Sequence[int] = ()) -> None:
        """Begin behind the tokens `before`, whose text is not given out."""
        self._tokenizer = tokenizer
        self.marks: Mapping[int, str] = {}
        self._ids = list(before)
        self._start = 0  # decoding begins here, so that a piece is spaced as it is within the text
        self._done = len(self._ids)  # tokens whose text is out

    def push(self, token: int) -> str:
        """Add a token and return the text that became whole."""
        if token not in self.marks:
            self._ids.append(token)
            return self._release(final=False)
        text = self.flush() + self.marks[token]
        self._ids.append(token)
        self._start, self._done = len(self._ids) - 1, len(self._ids)
        return text

    def flush(self) -> str:
        """Return what is left, an unfinished character included."""
        return self._release(final=True)

    def _release(self, *, final: bool) -> str:
        if self._tokenizer is None:
            return ""
        before = self._decode(self._ids[self._start : self._done])
        text = self._decode(self._ids[self._start :])
        if len(text) <= len(before) or (text.endswith("\N{REPLACEMENT CHARACTER}") and not final):
            return ""
        self._start, self._done = self._done, len(self._ids)
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
