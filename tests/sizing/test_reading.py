"""Reading before a first draft: what it takes, what remains of a text to repay it, and when it is put off."""

from __future__ import annotations

import math

import pytest

from speculant.core.tree import UNLIMITED
from speculant.sizing.acceptance import AcceptanceModel
from speculant.sizing.pausing import Pausing
from speculant.sizing.reading import Reading
from speculant.sizing.state import SequenceSizing
from walks import SizedText


def known(*lengths: int) -> Reading:
    """Return what was learned from texts of these lengths, and from the reading of 1,000 tokens in 20 passes."""
    reading = Reading()
    for length in lengths:
        reading.lengths.append(length)
    reading.observe(1000, 20.0)
    return reading


def text(unread: int = 1000, *, profit: float = 0.0, selective: bool = False) -> SequenceSizing:
    """Return a new text, of whose tokens drafts gain so much."""
    pausing = Pausing(earned=profit, squares=profit**2, drafts=1.0, tokens=1.0)
    return SequenceSizing(AcceptanceModel(), session=SizedText(tokens=unread, selective=selective), pausing=pausing)


def wait(reading: Reading, *, profit: float, length: int = 0, room: int = UNLIMITED, unread: int = 1000) -> int:
    """Return for how many rounds a text waits."""
    return reading.find_wait(length, room, unread, profit, 1.0)


def test_an_interrupted_reading_does_not_count() -> None:
    """Guards heads that gain: the time of a reading is the median of recent ones of similar length."""
    reading = known()
    assert reading.time(500) == pytest.approx(10)
    reading.observe(1000, 20.0)
    reading.observe(1000, 900.0)
    assert reading.time(500) == pytest.approx(10)
    for _ in range(7):
        reading.observe(16, 2.0)
    assert reading.time(1000) == pytest.approx(20)
    assert reading.time(20) == pytest.approx(2.5)
    assert reading.time(100) == reading.time(8000) == reading.time(3) == 0


def test_a_text_is_read_where_it_repays_it() -> None:
    """Guards both ways: short answers begin plainly, long ones draft at once, and so do drafts of unknown gain."""
    assert wait(known(20, 20), profit=0.5) == 8
    assert wait(known(400), profit=0.5) == 0
    assert wait(known(20, 20), profit=math.inf) == 0
    assert wait(known(20, 20), profit=-1.0) == 8
    assert wait(known(20, 20), profit=0.0, unread=10) == 0
    assert wait(Reading(), profit=0.0) == 0


def test_where_drafts_lose_their_balance_bounds_short_readings() -> None:
    """Guards heads that gain a little and had bad luck, who would wait and pause one after the other."""
    reading = known(20, 20)
    reading.observe(300, 6.0)
    assert wait(reading, profit=-0.1, unread=300) == 0


def test_reading_waits_for_short_texts_to_end() -> None:
    """Guards mixed answers: where a reading gains on average, but only in long texts, those alone are read."""
    assert wait(known(*[20] * 9, 400), profit=0.36) == 24
    assert wait(known(*[20] * 9, 400), profit=0.36, length=24) == 0
    assert wait(known(*[20] * 9, 4000), profit=5.0) == 0


def test_a_text_gains_no_more_than_it_may() -> None:
    """Guards requests for few tokens among others: what the request allows bounds what remains."""
    assert wait(known(400), profit=0.5, room=15) > 0
    assert wait(known(400), profit=0.5, room=350) == 0


def test_a_text_that_goes_on_is_read_in_the_end() -> None:
    """Guards the first long answer after short ones: it is decided again whenever its length has doubled."""
    reading, length, waits = known(20, 20), 0, list[int]()
    while pause := wait(reading, profit=0.5, length=length, unread=1000 + length):
        length, waits = length + pause, [*waits, pause]
    assert waits == [8, 8, 16, 32]
    assert wait(reading, profit=0.1, length=length) == 64


@pytest.mark.parametrize(("profit", "tokens"), [(0.3, 20), (-0.5, 20), (0.3, 2)])
def test_reading_in_vain_costs_a_small_share(profit: float, tokens: int) -> None:
    """Guards "never slower" and drafts that become better: texts too short are read once in a while."""
    reading, read = known(tokens), 0
    for _ in range(40000 // tokens):
        state = text(profit=profit)
        for _ in range(tokens):
            if not reading.waits(state, 1.0):
                read += 1
                break
            reading.count(state, 1)
    assert read > 5
    assert read * 20 < 0.006 * 40000


def test_a_draft_that_reads_nothing_does_not_wait() -> None:
    """Guards drafters that do without their model in some rounds, as where a match is continued."""
    reading, session = known(20), SizedText(tokens=1000)
    state = SequenceSizing(AcceptanceModel(), session=session, pausing=Pausing(drafts=1.0, tokens=1.0))
    assert reading.waits(state, 1.0)
    session.tokens = 0
    assert not reading.waits(state, 1.0)
    assert state.wait
    session.tokens = 1  # given up
    assert not reading.waits(state, 1.0)
    assert not state.wait
    assert not reading.waits(text(), 0.0)


def test_sessions_that_choose_share_the_cost_among_rounds() -> None:
    """Guards heads beside a memory: reading raises their price by its share, the memory goes on."""
    reading, state = known(20, 20), text(selective=True)
    assert not reading.waits(state, 1.0)
    assert reading.price_per_round(state, 1.0) == pytest.approx(1)
    state.length = 600
    reading.waits(state, 1.0)
    assert reading.price_per_round(state, 1.0) == pytest.approx(20 / 600)
    other = text()
    reading.waits(other, 1.0)
    assert reading.price_per_round(other, 1.0) == 0
