"""Texts of others are learned as one's own would be, whatever is lost on the way."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from rounds import start
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.tree import DraftTree
from speculant.registry import METHODS, BuildContext, build_drafter, learns_from_text
from speculant.sharing.channel import SharedTokens
from speculant.sharing.texts import MAX_OPEN, ForeignTexts

VOCABULARY = 80
SHARED = [name for name, method in METHODS.items() if learns_from_text(method)]


def text(seed: int, length: int = 300) -> np.ndarray:
    """Return random tokens."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).astype(np.int32)


def pieces(tokens: np.ndarray, prompt: int, size: int, request: int = 0) -> list[SharedTokens]:
    """Cut a text into pieces of `size` tokens; the last one ends it."""
    return [
        SharedTokens(
            replica=1,
            request=request,
            start=at,
            tokens=tokens[at : at + size],
            prompt=min(max(0, prompt - at), size),
            ended=at + size >= len(tokens),
        )
        for at in range(0, len(tokens), size)
    ]


def drafted(drafter: Drafter, context: np.ndarray) -> list[list[int]]:
    """Return what the drafter proposes after a context."""
    tree = drafter.open(start(context)).propose(Budget(nodes=20, depth=20))
    return [tree.tokens.tolist(), tree.parents.tolist()]


@pytest.mark.parametrize("size", [1, 7, 300])
@pytest.mark.parametrize("name", SHARED)
def test_what_is_learned_equals_what_a_session_learns(name: str, size: int) -> None:
    """Guards the path of foreign text: the drafter knows as much as if it had decoded the request itself."""
    own, other = (build_drafter(name, BuildContext(vocabulary=VOCABULARY, tokenizer="t")) for _ in range(2))
    tokens = text(1)
    session = own.open(start(tokens[:100]))
    for at in range(100, 300):
        session.observe(Verified(tree=DraftTree.empty(), path=np.empty(0, np.int32), tokens=tokens[at : at + 1]))
    session.close()
    texts = ForeignTexts(other)
    for piece in pieces(tokens, 100, size):
        texts.learn(piece)
    assert texts.learned == 300
    for at in (150, 200, 250):
        found = drafted(own, tokens[at - 8 : at])
        assert found == drafted(other, tokens[at - 8 : at])
        assert found[0], "nothing was learned"


def test_the_methods_that_share() -> None:
    """Guards the list: methods whose memory learns from more than text are not among them."""
    assert SHARED == ["mix", "aded", "maxgram", "suffix", "sam", "rest"]


def test_losses_and_repetitions_cost_context_only() -> None:
    """Guards the thread: gaps begin a new text, repeated pieces are ignored, unknown ones are learned from there."""
    drafter = build_drafter("mix", BuildContext(vocabulary=VOCABULARY, tokenizer="t"))
    texts = ForeignTexts(drafter)
    cut = pieces(text(2), 100, 50)
    for piece in (cut[0], cut[1], cut[1], cut[0], cut[2], cut[4], cut[5], cut[3]):
        texts.learn(piece)
    assert texts.learned == 6 * 50
    assert texts.failed == 0
    assert drafted(drafter, text(2)[220:240])[0][0] == text(2)[240]


def test_open_texts_are_bounded() -> None:
    """Guards memory against replicas that end no text: the ones that were idle for longest are ended."""
    drafter = Counting()
    texts = ForeignTexts(drafter)
    for request in range(3 * MAX_OPEN):
        texts.learn(pieces(text(3), 0, 50, request)[0])
    assert drafter.opened - drafter.closed == MAX_OPEN
    texts.close()
    assert drafter.opened == drafter.closed == 3 * MAX_OPEN


def test_a_text_that_cannot_be_learned_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Guards the thread against a drafter's errors: one warning, and later texts are learned."""
    drafter = Counting(fails=2)
    texts = ForeignTexts(drafter)
    with caplog.at_level(logging.WARNING):
        for request in range(4):
            texts.learn(pieces(text(4), 0, 300, request)[0])
    assert (texts.failed, drafter.opened) == (2, 2)
    assert len(caplog.records) == 1


def test_endless_prompts_are_learned() -> None:
    """Guards memory against a prompt that never ends: what arrived is learned when it is long enough."""
    drafter = Counting()
    texts = ForeignTexts(drafter)
    tokens = np.zeros(1 << 15, np.int32)
    for piece in pieces(tokens, len(tokens), 1 << 12)[:-1]:
        texts.learn(piece)
    assert drafter.opened == 1


class Counting(Drafter):
    """Counts sessions; the first ones fail to open."""

    def __init__(self, fails: int = 0) -> None:
        self.opened = self.closed = 0
        self._fails = fails

    def open(self, start: SessionRequest) -> Session:
        if self._fails:
            self._fails -= 1
            raise RuntimeError("full")
        self.opened += 1
        return CountingSession(self)


class CountingSession(Session):
    """Learns nothing."""

    def __init__(self, drafter: Counting) -> None:
        self._drafter = drafter

    def observe(self, verified: Verified) -> None:
        pass

    def close(self) -> None:
        self._drafter.closed += 1
