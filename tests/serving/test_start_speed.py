"""The speed that is measured as the server starts, and that nothing is left of it."""

from __future__ import annotations

from typing import Any

import pytest

from servers import make_speculator
from speculant.core.errors import OutOfMemoryError
from speculant.serving import start_speed
from speculant.serving.start_speed import measure_speed


def test_both_speeds_are_measured_and_nothing_is_learned(model: Any, tokenizer: Any) -> None:
    """Guards the first client: the text that was measured is in no memory, and drafts are the drafter's own again."""
    speculator = make_speculator(model, tokenizer)
    drafter, known = speculator.drafter, speculator.drafter.memory_bytes  # type: ignore[attr-defined]
    speed = measure_speed(speculator)
    assert speed is not None
    assert speed.plain > 0
    assert speed.drafted is not None
    assert speculator.drafter is drafter
    assert drafter.memory_bytes == known  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["none", "recycling"])
def test_drafts_that_would_leave_something_are_not_measured(model: Any, tokenizer: Any, method: str) -> None:
    """Guards methods without drafts, and memories that cannot be made anew."""
    speculator = make_speculator(model, tokenizer, method=method, nodes="auto")
    drafter = speculator.drafter
    speed = measure_speed(speculator)
    assert speed is not None
    assert speed.drafted is None
    assert speculator.drafter is drafter


def test_slow_models_are_measured_without_drafts(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the start of large models: a few rounds with drafts would take seconds."""
    monkeypatch.setattr(start_speed, "SLOW", 1e9)
    speed = measure_speed(make_speculator(model, tokenizer))
    assert speed is not None
    assert speed.drafted is None


def test_texts_that_cannot_be_measured(model: Any) -> None:
    """Guards models without a tokenizer, which are served all the same."""
    assert measure_speed(make_speculator(model, None)) is None


def test_a_start_that_cannot_be_measured_goes_on(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the start: a device that is full at the moment costs the figure, not the server."""
    speculator = make_speculator(model, tokenizer)

    def full(*_: Any, **__: Any) -> Any:
        raise OutOfMemoryError("the device is full.")

    monkeypatch.setattr(speculator, "batch", full)
    assert measure_speed(speculator) is None
