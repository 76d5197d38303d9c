"""Texts of other replicas: each is learned through a session of the drafter that is never asked for a draft.

So a drafter learns them in the same way as its own: the prompt when the session is opened, tokens when they are
observed, the whole text when it is closed. Tokens are observed a few at a time, because drafting waits while a drafter
learns.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from speculant.core.drafter import Drafter, Session, SessionRequest, Verified
from speculant.core.tree import ROOT, DraftTree, Int32
from speculant.sharing.channel import SharedTokens
from speculant.sharing.encoding import MAX_TOKENS

logger = logging.getLogger(__name__)
MAX_OPEN = 64  # maximum number of open texts; beyond it, the least recently extended ones are closed
OBSERVED = 64  # maximum number of tokens observed at a time


@dataclass(slots=True)
class _Text:
    """A partial text: its prompt until that is complete, then its session, and the position at which it ends."""

    end: int
    prompt: list[Int32]
    session: Session | None = None


class ForeignTexts:
    """Learns pieces of other replicas' texts. Not thread-safe.

    Attributes:
        learned: number of tokens learned.
        failed: number of texts that the drafter could not learn.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.learned, self.failed = 0, 0
        self._drafter = drafter
        self._open: OrderedDict[tuple[int, int], _Text] = OrderedDict()

    def learn(self, piece: SharedTokens) -> None:
        """Learn a piece. If pieces before it were lost, it begins a new text; repeated pieces are ignored."""
        key = piece.replica, piece.request
        text = self._open.pop(key, None)
        if text is not None and piece.start < text.end:  # repeated
            self._open[key] = text
            return
        if text is not None and piece.start > text.end:
            self._end(text)
            text = None
        text = text or _Text(piece.start, [])
        try:
            self._extend(text, piece)
        except Exception as error:
            self._count_failure(error)
            return
        self.learned += len(piece.tokens)
        if piece.ended:
            self._end(text)
            return
        self._open[key] = text
        while len(self._open) > MAX_OPEN:
            self._end(self._open.popitem(last=False)[1])

    def close(self) -> None:
        """Close all texts."""
        while self._open:
            self._end(self._open.popitem()[1])

    def _extend(self, text: _Text, piece: SharedTokens) -> None:
        text.end += len(piece.tokens)
        rest = piece.tokens
        if text.session is None:
            text.prompt.append(rest[: piece.prompt])
            rest = rest[piece.prompt :]
            if not len(rest) and not piece.ended and sum(map(len, text.prompt)) < MAX_TOKENS:
                return  # more of the prompt may follow
            text.session = self._drafter.open(SessionRequest(prompt=np.concatenate(text.prompt)))
            text.prompt = []
        for at in range(0, len(rest), OBSERVED):
            text.session.observe(_make_round(rest[at : at + OBSERVED]))

    def _end(self, text: _Text) -> None:
        try:
            if text.session is not None:
                text.session.close()
        except Exception as error:
            self._count_failure(error)

    def _count_failure(self, error: Exception) -> None:
        self.failed += 1
        if self.failed == 1:
            logger.warning(
                "a text from another replica could not be learned and was dropped; further ones are only counted. "
                "%s: %s",
                type(error).__name__,
                error,
            )


def _make_round(tokens: Int32) -> Verified:
    """Return the result of a round that accepted a chain of all tokens but the last."""
    nodes = len(tokens) - 1
    path = np.arange(nodes, dtype=np.int32)
    tree = DraftTree.trusted(tokens[:-1], path + np.int32(ROOT), np.ones(nodes, np.float32))
    return Verified(tree=tree, path=path, tokens=tokens)
