"""The demonstration's scenes and what is made of their timings."""

from __future__ import annotations

import pytest

from speculant.api.loading import load_model
from speculant.bench.demo import DemoAnswer, DemoRequest, Measured, Scene, measure, plays, scenes


def answer(plain: float, drafted: float, *, tokens: int = 10, identical: bool = True) -> DemoAnswer:
    """Return an answer that took so long."""
    return DemoAnswer(
        request=DemoRequest("r", "r"),
        tokens=tokens,
        plain=plain,
        drafted=drafted,
        identical=identical,
        parts=[("a", False), ("b", True)],
    )


def measured(*answers: DemoAnswer) -> Measured:
    """Return a measured scene."""
    return Measured(Scene(name="s", method="mix", requests=(), maximum=1), answers)


def test_speeds_are_tokens_over_seconds_of_all_requests() -> None:
    """Guards the table's figures: long answers weigh more than short ones."""
    found = measured(answer(1.0, 0.5, tokens=10), answer(3.0, 1.5, tokens=50))
    assert found.plain_speed == 15
    assert found.drafted_speed == 30
    assert found.speed_up == 2
    assert found.answers[0].speed_up == 2


def test_one_difference_is_not_identical() -> None:
    """Guards the table's last column."""
    assert measured(answer(1, 1), answer(1, 1)).identical
    assert not measured(answer(1, 1), answer(1, 1, identical=False)).identical


@pytest.mark.parametrize("number", range(3))
def test_a_scene_is_measured(number: int) -> None:
    """Guards that drafts change nothing, that texts are whole and that every request is counted."""
    whole = scenes()[number]
    requests = whole.requests[:2]
    scene = Scene(name=whole.name, method=whole.method, requests=requests, maximum=12, base=whole.base)
    calls: list[int] = []
    found = measure(scene, *load_model(None), repetitions=2, advance=lambda: calls.append(1))
    assert len(calls) == plays([scene], repetitions=2) == 4
    assert found.identical
    assert [each.request for each in found.answers] == list(requests)
    assert all(each.tokens == 12 and each.text for each in found.answers)
    assert found.to_json()["answers"][1]["text"] == found.answers[1].text


def test_the_memory_is_put_back_before_each_repetition() -> None:
    """Guards that a second repetition does not draft from the first one's answers."""
    scene = Scene(name="s", method="mix", requests=[DemoRequest("r", "Once upon a time")], maximum=40)
    answer = measure(scene, *load_model(None), repetitions=3).answers[0]
    assert sum(accepted for _, accepted in answer.parts) < 30, "with the memory of an equal answer nearly all are"
