"""The n-gram pool of Lookahead Decoding: the most recent n-grams for each first token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class NgramPool:
    """N-grams by their first token; when the pool is full, the least recently used are dropped."""

    def __init__(self, *, candidates: int, first_tokens: int) -> None:
        """Create an empty pool.

        Args:
            candidates: G, n-grams kept per first token.
            first_tokens: maximum number of first tokens.
        """
        self._candidates, self._first_tokens = candidates, first_tokens
        self._found: OrderedDict[int, list[tuple[int, ...]]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of n-grams."""
        return sum(map(len, self._found.values()))

    def add(self, ngram: Sequence[int]) -> None:
        """Add an n-gram as the most recent one for its first token."""
        first, rest = ngram[0], tuple(ngram[1:])
        known = self._found.setdefault(first, [])
        if rest in known:
            known.remove(rest)
        known.insert(0, rest)
        del known[self._candidates :]
        self._found.move_to_end(first)
        if len(self._found) > self._first_tokens:
            self._found.popitem(last=False)

    def after(self, token: int) -> list[tuple[int, ...]]:
        """Return what follows `token` in its n-grams, most recent first."""
        return list(self._found.get(token, ()))
