"""What waits to be published: bounded, in order, and joined."""

from __future__ import annotations

import numpy as np

from speculant.sharing.channel import SharedTokens
from speculant.sharing.encoding import MAX_PIECES, MAX_TOKENS
from speculant.sharing.outbox import HELD, Outbox


def piece(request: int, start: int, length: int, *, prompt: int = 0, ended: bool = False) -> SharedTokens:
    """Return a piece whose tokens are their positions."""
    tokens = np.arange(start, start + length, dtype=np.int32)
    return SharedTokens(request=request, start=start, tokens=tokens, prompt=prompt, ended=ended)


def facts(pieces: list[SharedTokens]) -> list[tuple[int, int, int, int, bool]]:
    """Return what there is to compare."""
    return [(each.request, each.start, len(each.tokens), each.prompt, each.ended) for each in pieces]


def test_pieces_of_a_text_are_joined() -> None:
    """Guards the number of messages and their size: rounds of many requests leave as one piece each."""
    outbox = Outbox()
    for start in range(0, 12, 3):
        outbox.add(piece(1, start, 3, prompt=3 if start == 0 else 0))
        outbox.add(piece(2, start, 3))
    outbox.add(piece(1, 12, 0, ended=True))
    found = outbox.take()
    assert facts(found) == [(1, 0, 12, 3, True), (2, 0, 12, 0, False)]
    assert found[0].tokens.tolist() == list(range(12))
    assert not outbox.take()


def test_gaps_and_late_prompts_are_not_joined() -> None:
    """Guards positions: only what follows is joined, and a prompt only to a prompt."""
    outbox = Outbox()
    for each in (piece(1, 0, 3), piece(1, 5, 3), piece(2, 0, 3), piece(2, 3, 3, prompt=3)):
        outbox.add(each)
    assert facts(outbox.take()) == [(1, 0, 3, 0, False), (1, 5, 3, 0, False), (2, 0, 3, 0, False), (2, 3, 3, 3, False)]


def test_messages_are_bounded() -> None:
    """Guards the store: no message holds more than its share, however long a prompt is or many the pieces are."""
    outbox = Outbox()
    outbox.add(piece(1, 0, 3 * MAX_TOKENS, prompt=2 * MAX_TOKENS + 10, ended=True))
    found = list[SharedTokens]()
    while taken := outbox.take():
        assert sum(len(each.tokens) for each in taken) <= MAX_TOKENS
        found += taken
    assert np.concatenate([each.tokens for each in found]).tolist() == list(range(3 * MAX_TOKENS))
    assert sum(each.prompt for each in found) == 2 * MAX_TOKENS + 10
    assert [each.ended for each in found] == [False] * (len(found) - 1) + [True]
    for request in range(MAX_PIECES + 1):
        outbox.add(piece(request, 0, 1))
    assert [len(outbox.take()), len(outbox.take())] == [MAX_PIECES, 1]


def test_the_queue_is_bounded() -> None:
    """Guards memory while the server is away: what waited longest is dropped and counted."""
    outbox = Outbox()
    for start in range(0, 3 * HELD, 100):
        outbox.add(piece(1, start, 100))
    found = list[SharedTokens]()
    while taken := outbox.take():
        found += taken
    held = sum(len(each.tokens) for each in found)
    assert HELD - 100 < held <= HELD
    assert outbox.dropped == 3 * HELD // 100 * 100 + 100 * (3 * HELD % 100 > 0) - held
    assert found[-1].tokens[-1] >= 3 * HELD - 1


def test_a_closed_outbox_hands_out_what_it_holds() -> None:
    """Guards the end: nothing is waited for, what is held still leaves, and nothing is taken any more."""
    outbox = Outbox()
    outbox.add(piece(1, 0, 3))
    outbox.close()
    outbox.add(piece(1, 3, 3))
    assert outbox.wait(60)
    assert facts(outbox.take()) == [(1, 0, 3, 0, False)]
    assert not outbox.wait(60)
