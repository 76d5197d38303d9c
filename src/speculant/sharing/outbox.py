"""Bounded queue of pieces to be published; consecutive pieces of a text are joined."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from speculant.sharing.channel import SharedTokens
from speculant.sharing.encoding import MAX_PIECES, MAX_TOKENS

HELD = 8 * MAX_TOKENS  # maximum number of tokens that wait
_PIECE = MAX_TOKENS // 2


class Outbox:
    """A queue from the rounds to the publishing thread. If it is full, the oldest pieces are dropped.

    Attributes:
        dropped: number of dropped tokens.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._pieces: deque[SharedTokens] = deque()
        self._tokens, self._closed = 0, False
        self._condition = threading.Condition()

    def add(self, piece: SharedTokens) -> None:
        """Append a piece; returns at once."""
        with self._condition:
            if self._closed:
                return
            first = not self._pieces
            for part in [piece] if len(piece.tokens) <= _PIECE else _split(piece):
                self._pieces.append(part)
                self._tokens += len(part.tokens)
            while self._tokens > HELD or len(self._pieces) > HELD:
                self.dropped += self._pop()
            if first or self._tokens >= MAX_TOKENS:  # waking the thread for nothing would take time from rounds
                self._condition.notify_all()

    def wait(self, delay: float) -> bool:
        """Wait for the first piece, then up to `delay` more seconds for others to join; return whether to continue.

        Returns early if a message is full, and False once the outbox is closed and empty.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self._pieces)
            self._condition.wait_for(lambda: self._closed or self._tokens >= MAX_TOKENS, delay)
            return bool(self._pieces) or not self._closed

    def take(self) -> list[SharedTokens]:
        """Remove and return the pieces of one message."""
        taken, tokens = list[SharedTokens](), 0
        with self._condition:
            while self._pieces and len(taken) < MAX_PIECES:
                if tokens + len(self._pieces[0].tokens) > MAX_TOKENS:
                    break
                tokens += len(self._pieces[0].tokens)
                taken.append(self._pieces[0])
                self._pop()
        return _join_pieces(taken)

    def close(self) -> None:
        """Accept no more pieces; `wait` no longer waits."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _pop(self) -> int:
        length = len(self._pieces.popleft().tokens)
        self._tokens -= length
        return length


def _split(piece: SharedTokens) -> list[SharedTokens]:
    """Split a piece into pieces of at most half a message each."""
    parts = []
    for at in range(0, len(piece.tokens), _PIECE):
        tokens = piece.tokens[at : at + _PIECE]
        parts.append(
            SharedTokens(
                request=piece.request,
                start=piece.start + at,
                tokens=tokens,
                prompt=min(max(0, piece.prompt - at), len(tokens)),
                ended=piece.ended and at + len(tokens) == len(piece.tokens),
            )
        )
    return parts


def _join_pieces(pieces: list[SharedTokens]) -> list[SharedTokens]:
    """Join consecutive pieces of each request; keeps the order within a request."""
    runs: dict[int, list[list[SharedTokens]]] = {}
    for piece in pieces:
        known = runs.setdefault(piece.request, [])
        last = known[-1][-1] if known else None
        follows = last is not None and last.start + len(last.tokens) == piece.start
        if last is not None and follows and (not piece.prompt or last.prompt == len(last.tokens)):
            known[-1].append(piece)
        else:
            known.append([piece])
    return [
        SharedTokens(
            request=run[0].request,
            start=run[0].start,
            tokens=np.concatenate([piece.tokens for piece in run]),
            prompt=sum(piece.prompt for piece in run),
            ended=run[-1].ended,
        )
        for known in runs.values()
        for run in known
    ]
