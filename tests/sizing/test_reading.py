"""Reading before a first draft: what it takes, what remains of a text to repay it, and when it is put off."""

from __future__ import annotations

import math

import pytest

from speculant.sizing.reading import Reading


def known(*lengths: int, per_token: float = 0.02) -> Reading:
    """Return readings of a known cost, after texts of these lengths."""
    reading = Reading()
    for length in lengths:
        reading.lengthen(reading.open(), length)
    reading.observe(1000, 1000 * per_token)
    return reading


def test_an_interrupted_reading_does_not_count() -> None:
    """Guards heads that gain: the time of a token is the median of recent readings, and long ones alone tell it."""
    reading = known()
    assert reading.time(500) == pytest.approx(10)
    reading.observe(1000, 20.0)
    reading.observe(1000, 900.0)
    reading.observe(3, 60.0)
    assert reading.time(500) == pytest.approx(10)
    assert reading.time(3) == 0


def test_what_remains_is_that_of_texts_as_long() -> None:
    """Guards mixed answers: a text that is longer than most is expected to become as long as those that were."""
    reading = known(20, 20, 20, 400)
    place = reading.open()
    assert reading.remaining(place) == 115
    reading.lengthen(place, 20)
    assert reading.remaining(place) == 380
    reading.lengthen(place, 600)
    assert reading.remaining(place) == 620


def test_a_text_is_read_where_it_repays_it() -> None:
    """Guards both ways: short answers begin plainly, long ones draft at once, and so do drafts of unknown gain."""
    short, long = known(20, 20), known(400)
    assert short.find_pause(short.open(), 1000, 0.5, 1.0) == 8
    assert long.find_pause(long.open(), 1000, 0.5, 1.0) == 0
    assert short.find_pause(short.open(), 1000, math.inf, 1.0) == 0
    assert short.find_pause(short.open(), 10, 0.0, 1.0) == 0
    assert Reading().find_pause(0, 1000, 0.0, 1.0) == 0


def test_reading_waits_for_short_texts_to_end() -> None:
    """Guards mixed answers: where a reading gains on average, but only in long texts, those alone are read."""
    reading = known(*[20] * 9, 400)
    assert reading.find_pause(reading.open(), 1000, 0.36, 1.0) == 24
    assert known(*[20] * 9, 4000).find_pause(0, 1000, 5.0, 1.0) == 0


def test_a_text_gains_no_more_than_it_may() -> None:
    """Guards requests for few tokens among others: what the request allows bounds what remains."""
    reading = known(400)
    assert reading.remaining(reading.open(15)) == 15
    assert reading.find_pause(reading.open(15), 1000, 0.5, 1.0) > 0
    assert reading.find_pause(reading.open(350), 1000, 0.5, 1.0) == 0


def test_a_text_that_goes_on_is_read_in_the_end() -> None:
    """Guards the first long answer after short ones: it is decided again whenever its length has doubled."""
    reading, rounds, pauses = known(20, 20), 0, list[int]()
    place = reading.open()
    while pause := reading.find_pause(place, 1000 + rounds, 0.5, 1.0):
        reading.lengthen(place, pause)
        rounds, pauses = rounds + pause, [*pauses, pause]
    assert pauses == [8, 8, 16, 32]
    assert reading.find_pause(place, 1000, 0.1, 1.0) == 64


@pytest.mark.parametrize("profit", [0.3, -0.5])
def test_reading_in_vain_costs_a_small_share(profit: float) -> None:
    """Guards "never slower" and drafts that become better: texts too short are read once in a while."""
    reading, lost, read, rounds = known(20), 0.0, 0, 0
    for _ in range(2000):
        place = reading.open()
        pause = reading.find_pause(place, 1000, profit, 1.0)
        reading.lengthen(place, 20)
        rounds += 20
        if not pause:
            read, lost = read + 1, lost + 20 - 20 * max(0.0, profit)
    assert read >= 3
    assert lost < 0.006 * rounds
