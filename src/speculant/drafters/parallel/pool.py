"""The n-gram pool of Lookahead Decoding: for each first token the n-grams that were seen last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class NgramPool:
    """N-grams by their first token; of more than it may hold, those that were used least recently are dropped."""

    def __init__(self, *, candidates: int, first_tokens: int) -> None:
        """Begin empty.

        Args:
            candidates: G, n-grams kept for each first token.
            first_tokens: how many first tokens are kept.
        """
        self._candidates, self._first_tokens = candidates, first_tokens
        self._found: OrderedDict[int, list[tuple[int, ...]]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many n-grams it holds."""
        return sum(map(len, self._found.values()))

    def add(self, ngram: Sequence[int]) -> None:
        """Make an n-gram the most recent of its first token."""
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
        """Return what followed a token in its n-grams, the most recent first."""
        return list(self._found.get(token, ()))
