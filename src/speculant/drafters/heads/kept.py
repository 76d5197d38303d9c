"""States of ended requests, which the next turns of their conversations go on with.

A prompt whose first tokens are in the target's cache already is read from there on, so their hidden states are not
computed again. The rows that the head made of them are kept here, and found again by the text.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from speculant.core.engine import TargetCache
from speculant.drafters.heads.head import Head, HeadState, LayerHead, TargetParts, TextHead

KEPT = 4  # states


class KeptStates:
    """Opens the states of one head's texts, and keeps those of ended ones. For several threads at once.

    Attributes:
        head: the head.
        target: of the head.
        row_share: see `HeadText.row_share`; None until it was measured.
    """

    def __init__(self, head: Head, target: TargetParts) -> None:
        """Begin without any state.

        Args:
            head: whose states these are.
            target: of the head.
        """
        self.head, self.target = head, target
        self.row_share: float | None = None
        self._kept: deque[tuple[Sequence[int], HeadState]] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def open(self, known: Sequence[int], cache: TargetCache | None = None) -> HeadState:
        """Return a state with the rows of all tokens but the last, if they are kept; else one that lacks them.

        Args:
            known: the text up to the first token whose hidden states are given next, that token included.
            cache: the target's of the request, for heads that read the text.
        """
        if isinstance(self.head, TextHead):
            return self.head.open_text(known, self.target, cache)
        first = len(known) - 1
        found = self._kept_state(known, first)
        if isinstance(self.head, LayerHead):
            return self.head.open_below(first, self.target, cache, found)
        return self.head.open(first, self.target) if found is None else found

    def _kept_state(self, known: Sequence[int], first: int) -> HeadState | None:
        """Return the state that is kept of a text whose tokens up to the position `first` it has rows of."""
        with self._lock:
            for place, (tokens, state) in enumerate(self._kept):
                if 0 < first <= state.length and tokens[: len(known)] == known:
                    del self._kept[place]
                    state.crop(first)
                    if state.length == first:  # else it lacks rows at the beginning itself, more than are wanted
                        return state
                    break
        return None

    def keep(self, tokens: Sequence[int], state: HeadState) -> None:
        """Keep the state of a text that has ended; the oldest one is dropped for it.

        Args:
            tokens: the text, its root included.
            state: of the text. One that does not have as many rows was interrupted, and is dropped.
        """
        state.drop()
        if isinstance(self.head, LayerHead):
            self.head.end(state)
        if isinstance(self.head, TextHead):
            return  # the target's cache, which it reads, ends with the request
        if state.length == len(tokens) - 1:
            with self._lock:
                self._kept.append((tokens, state))
