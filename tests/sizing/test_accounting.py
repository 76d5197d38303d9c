"""What drafts are charged for a pass, and what reading took: by hand, on a curve that is known."""

from __future__ import annotations

import pytest

from speculant.core.tree import DraftTree
from speculant.sizing.acceptance import AcceptanceModel
from speculant.sizing.accounting import Accounting
from speculant.sizing.latency import LatencyModel
from speculant.sizing.reading import Reading
from speculant.sizing.state import SequenceSizing
from trees import chain
from walks import curve


def states(count: int, **of_the_first: int) -> list[SequenceSizing]:
    """Return sequences of which the first has these values."""
    found = [SequenceSizing(AcceptanceModel()) for _ in range(count)]
    for name, value in of_the_first.items():
        setattr(found[0], name, value)
    return found


@pytest.mark.parametrize(("seconds", "charged"), [(1.6, 1.6), (9.0, 1.5 * 1.4), (0.1, 1.4 / 1.5)])
def test_drafts_are_charged_what_their_pass_took(seconds: float, charged: float) -> None:
    """Guards against stalls, which are no cost of a draft, and against passes that a clock measured as too short."""
    accounting = Accounting(LatencyModel(maximum=64, known=curve(0.2)), Reading())
    predicted, took = accounting.observe_pass(states(1, asked=2), [chain(0.5, 0.4)], seconds)
    assert predicted == pytest.approx(1.4, rel=0.2)  # which has learned from the pass
    assert took == pytest.approx(charged, rel=0.2)


def test_a_batch_charges_its_drafts_their_share() -> None:
    """Guards large batches, where the noise of a pass exceeds what one draft adds to it."""
    accounting = Accounting(LatencyModel(maximum=64, known=curve(0.2)), Reading())
    predicted, took = accounting.observe_pass(states(4, asked=1), [chain(0.5), *[DraftTree.empty()] * 3], 2.4)
    assert 0 < took - predicted < (2.4 - predicted) / 3


def test_what_reading_took_is_that_beyond_the_usual_time() -> None:
    """Guards readings: a text that read a prompt is charged for it, the one beside it is not."""
    reading, drafts = Reading(), [chain(0.5), chain(0.5)]
    accounting = Accounting(LatencyModel(maximum=64, known=curve(0.2)), reading)
    for _ in range(4):
        accounting.observe_drafting(states(2, asked=1, rounds=1), drafts, 0.2)
    asking = states(2, asked=1, rounds=1)
    asking[1].asked, asking[1].rounds, asking[0].read = 1, 1, 400
    charged, readings = accounting.observe_drafting(asking, drafts, 8.2)
    assert charged < 1
    assert readings == [pytest.approx(8.0, rel=0.1), 0.0]
    assert reading.time(400) == pytest.approx(readings[0])


def test_a_reading_whose_time_is_not_known_is_not_recorded() -> None:
    """Guards the first readings of a process: recorded as taking no time, they would make long prompts look free."""
    reading = Reading()
    accounting = Accounting(LatencyModel(maximum=64, known=curve(0.2)), reading)
    _, readings = accounting.observe_drafting(states(1, asked=1, read=400), [chain(0.5)], 8.2)
    assert readings == [0.0]
    reading.observe(400, 8.0)
    assert reading.time(400) == pytest.approx(8.0)


def test_where_few_texts_draft_what_they_share_is_not_their_usual_time() -> None:
    """Guards batches: the cold start of a round's first draft goes to the balance, not to what drafts usually take."""
    accounting = Accounting(latency := LatencyModel(maximum=64, known=curve(0.2)), Reading())
    for turn in range(60):
        texts = states(8)
        for text in texts[: 1 + turn % 4]:
            text.asked = text.rounds = 1
        charged, readings = accounting.observe_drafting(texts, [chain(0.5)] * 8, 0.3 + 0.1 * (1 + turn % 4))
    assert latency.drafting.usual == pytest.approx(0.1 + 0.3 / 8, rel=0.25)
    assert charged + sum(readings) == pytest.approx(0.7, rel=0.1)


def test_passes_of_a_draft_model_are_not_shared() -> None:
    """Guards heads: one pass drafts for all texts, and few of them pay for it in full."""
    found = []
    for by_level in (False, True):
        accounting = Accounting(latency := LatencyModel(maximum=64, known=curve(0.2)), Reading())
        for turn in range(60):
            texts = states(8)
            for text in texts[: 1 + turn % 2]:
                text.asked = text.rounds = text.levels = 1
                text.by_level = by_level
            accounting.observe_drafting(texts, [chain(0.5)] * 8, 0.3)
        found.append(latency.drafting.usual)
    assert found[1] > 1.3 * found[0]


def test_rounds_without_questions_take_no_drafting_time() -> None:
    """Guards pauses: what observing costs there is no cost of drafts."""
    accounting = Accounting(LatencyModel(maximum=64, known=curve(0.2)), Reading())
    assert accounting.observe_drafting(states(2), [DraftTree.empty()] * 2, 0.5) == (0.0, [0.0, 0.0])
