"""Incremental detokenization: only whole characters are emitted, and the pieces join to the whole text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The treatment of special tokens in a text.

    Attributes:
        skip: whether they are omitted.
        spaced: whether a space that the tokenizer puts between two of them is kept.
    """

    skip: bool = True
    spaced: bool = True


LEFT_OUT = SpecialTokens()


class Detokenizer:
    """Converts committed tokens to text, one piece per token; a piece is empty until its character is complete.

    Attributes:
        marks: texts of special tokens to keep in the text, by id; the others are omitted.
    """

    def __init__(self, tokenizer: Any, before: Sequence[int] = (), *, special: SpecialTokens = LEFT_OUT) -> None:
        """Start after the tokens `before`, whose text is not emitted."""
        self._tokenizer, self._special = tokenizer, special
        self.marks: Mapping[int, str] = {}
        self._ids = list(before)  # the last tokens: decoding starts here, so that pieces are spaced as within the text
        self._done = len(self._ids)  # number of these whose text was emitted

    def copy(self) -> Detokenizer:
        """Return another one in the same state, so that tokens can be pushed to it on trial."""
        made = Detokenizer(self._tokenizer, self._ids, special=self._special)
        made.marks, made._done = self.marks, self._done
        return made

    def push(self, token: int) -> str:
        """Add a token and return the text that it completes."""
        if token not in self.marks:
            self._ids.append(token)
            return self._release(final=False)
        text = self.flush() + self.marks[token]
        self._ids, self._done = [token], 1
        return text

    def push_end(self, token: int) -> str:
        """Add the token that ended the text, which is not part of it if it is special, whatever is omitted."""
        return "" if not self._special.skip and self._is_special(token) else self.push(token)

    def flush(self) -> str:
        """Return the rest, including an incomplete character."""
        return self._release(final=True)

    def _release(self, *, final: bool) -> str:
        if self._tokenizer is None:
            self._ids = []
            return ""
        before, text = self._decode(self._ids[: self._done]), self._decode(self._ids)
        if len(text) <= len(before) or (text.endswith("\N{REPLACEMENT CHARACTER}") and not final):
            return ""
        new = text[len(before) :]
        joined = not self._special.spaced and len(self._ids) > 1 and all(map(self._is_special, self._ids[-2:]))
        del self._ids[: self._done]
        self._done = len(self._ids)
        return new.removeprefix(" ") if joined else new

    def _decode(self, ids: list[int]) -> str:
        skip = self._special.skip
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        return text

    def _is_special(self, token: int) -> bool:
        if self._tokenizer is None:
            return False
        shown, hidden = (self._tokenizer.decode([token], skip_special_tokens=skip) for skip in (False, True))
        return bool(shown) and not hidden
