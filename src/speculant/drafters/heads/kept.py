"""States of ended requests, for reuse in the next turns of their conversations.

If the first tokens of a prompt are already in the target's cache, the target reads only the rest, so their hidden
states are not computed again. The rows that the head made of them are kept here, and looked up by the text.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from torch import Tensor

from speculant.core.engine import TargetCache
from speculant.drafters.heads.head import Head, HeadState, LayerHead, SourceHead, TargetParts, TextHead

KEPT = 4  # maximum number of states kept


class KeptStates:
    """Opens the states of one head's texts, and keeps those of ended ones. Thread-safe.

    Attributes:
        head: the head.
        target: target of the head.
        row_share: see `HeadText.row_share`; None until it is measured.
    """

    def __init__(self, head: Head, target: TargetParts) -> None:
        """Start without any states.

        Args:
            head: head that the states belong to.
            target: target of the head.
        """
        self.head, self.target = head, target
        self.row_share: float | None = None
        self._kept: deque[tuple[Sequence[int], HeadState]] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def lasting(self) -> bool:
        """Whether states can be of use after the end of their text.

        The target's cache, which a head that reads the text may read, ends with the request; and behind an encoder the
        same tokens have other states with another source.
        """
        return not (isinstance(self.head, TextHead) or self.target.source_size)

    def open(self, known: Sequence[int], cache: TargetCache | None = None, source: Tensor | None = None) -> HeadState:
        """Return a state with the rows of all tokens but the last, if they were kept; otherwise one without them.

        Args:
            known: text up to and including the first token whose hidden states will be given next.
            cache: the target's cache of the request, for heads that read the text.
            source: [n, S], the states of the target's encoder, if it has one.
        """
        if source is not None and isinstance(self.head, SourceHead):
            return self.head.open_source(known, self.target, source)
        if isinstance(self.head, TextHead):
            return self.head.open_text(known, self.target, cache)
        first = len(known) - 1
        found = self._kept_state(known, first)
        if isinstance(self.head, LayerHead):
            return self.head.open_below(first, self.target, cache, found)
        return self.head.open(first, self.target) if found is None else found

    def _kept_state(self, known: Sequence[int], first: int) -> HeadState | None:
        """Return the kept state that has rows of the text `known` up to position `first`, or None."""
        with self._lock:
            for place, (tokens, state) in enumerate(self._kept):
                if 0 < first <= state.length and tokens[: len(known)] == known:
                    del self._kept[place]
                    state.crop(first)
                    if state.length == first:  # otherwise it lacks more rows at the beginning than it may
                        return state
                    break
        return None

    def keep(self, tokens: Sequence[int], state: HeadState) -> None:
        """Keep the state of an ended text; the oldest state is dropped for it.

        Args:
            tokens: the text, including its root.
            state: state of the text; if it was interrupted and lacks rows, it is dropped.
        """
        state.drop()
        if isinstance(self.head, LayerHead):
            self.head.end(state)
        if self.lasting and state.length == len(tokens) - 1:
            with self._lock:
                self._kept.append((tokens, state))
