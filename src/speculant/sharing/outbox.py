"""Pieces that wait to be published: bounded, and joined where they follow each other in one text."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from speculant.sharing.channel import SharedTokens
from speculant.sharing.encoding import MAX_PIECES, MAX_TOKENS

HELD = 8 * MAX_TOKENS  # tokens that wait at most
_PIECE = MAX_TOKENS // 2


class Outbox:
    """A queue from rounds to the thread that publishes. What does not fit displaces what has waited longest.

    Attributes:
        dropped: tokens that were displaced.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._pieces: deque[SharedTokens] = deque()
        self._tokens, self._closed = 0, False
        self._condition = threading.Condition()

    def add(self, piece: SharedTokens) -> None:
        """Append a piece; return at once."""
        with self._condition:
            if self._closed:
                return
            first = not self._pieces
            for part in [piece] if len(piece.tokens) <= _PIECE else _split(piece):
                self._pieces.append(part)
                self._tokens += len(part.tokens)
            while self._tokens > HELD or len(self._pieces) > HELD:
                self.dropped += self._pop()
            if first or self._tokens >= MAX_TOKENS:  # a thread that is woken up in vain takes the rounds' time
                self._condition.notify_all()

    def wait(self, delay: float) -> bool:
        """Wait for the first piece, then `delay` seconds more for others to join; return whether to go on.

        It returns at once where a message is full, and False once the outbox is closed and empty.
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
        """Take nothing more; `wait` no longer waits."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _pop(self) -> int:
        length = len(self._pieces.popleft().tokens)
        self._tokens -= length
        return length


def _split(piece: SharedTokens) -> list[SharedTokens]:
    """Return pieces of at most half a message each."""
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
    """Return one piece per run of pieces of a request that follow each other; order within a request stays."""
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
