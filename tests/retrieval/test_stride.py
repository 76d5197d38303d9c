"""The number of guesses before a verification is the one that confirms the most a second."""

from __future__ import annotations

import pytest

from speculant.retrieval.stride import MAX_STRIDE, StrideScheduler


def scheduler(
    guess: float, verification: float, outcomes: list[tuple[int, bool]], *, concurrent: bool
) -> StrideScheduler:
    """Return a scheduler that saw such times and outcomes."""
    found = StrideScheduler(None, concurrent=concurrent)
    found.observe_guess(guess)
    for confirmed, failed in outcomes:
        found.observe_verification(verification, confirmed=confirmed, failed=failed)
    return found


def test_it_begins_with_one_guess_and_keeps_a_fixed_number() -> None:
    """Guards the first step, where nothing is known, and users' own stride."""
    assert StrideScheduler(None, concurrent=True).stride == 1
    fixed = StrideScheduler(7, concurrent=True)
    fixed.observe_verification(1.0, confirmed=0, failed=True)
    assert fixed.stride == 7


@pytest.mark.parametrize("concurrent", [False, True])
def test_it_maximises_the_published_objective(concurrent: bool) -> None:
    """Guards the formula against one written out for a case: a = 1, b = 4."""
    found = scheduler(1.0, 4.0, [(3, True), (2, True)], concurrent=concurrent)
    g = found.accuracy
    assert g == pytest.approx(5.6 / 8)

    def value(s: int) -> float:
        turn, together = s + 4, s - 1 + 4
        seconds = g**s * (together if concurrent else turn) + (1 - g**s) * (turn + 1)
        return (1 - g**s) / (1 - g) / seconds

    assert found.stride == max(range(1, MAX_STRIDE + 1), key=value)
    assert value(found.stride) > 1 / (1 + 4)


def test_dear_verification_and_right_guesses_lengthen_it() -> None:
    """Guards the directions: longer where searching is dear, shorter where guesses are wrong."""
    right, wrong = [(4, False)] * 5, [(0, True)] * 5
    assert scheduler(1.0, 20.0, right, concurrent=False).stride > scheduler(1.0, 0.1, right, concurrent=False).stride
    assert scheduler(1.0, 0.1, wrong, concurrent=False).stride == 0


def test_it_forgets_what_is_long_ago() -> None:
    """Guards the window: accuracy follows the text."""
    lately = [(3, False)] * 10
    expected = scheduler(1.0, 1.0, lately, concurrent=True).accuracy
    assert scheduler(1.0, 1.0, [(0, True)] * 9 + lately, concurrent=True).accuracy == expected


def test_nothing_is_guessed_where_searching_first_is_faster() -> None:
    """Guards "never slower": a search that takes no time is not worth a wrong guess."""
    mostly = [(9, True)] * 5
    assert scheduler(1.0, 0.01, mostly, concurrent=True).stride == 0
    assert scheduler(1.0, 1.0, mostly, concurrent=True).stride > 0
    assert scheduler(1.0, 0.2, [(0, True)] * 5, concurrent=False).stride == 0
