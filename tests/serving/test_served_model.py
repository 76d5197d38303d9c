"""What a served model takes from the settings, and what it chooses by itself."""

from __future__ import annotations

from typing import Any

import pytest

from servers import make_app, make_speculator
from speculant.serving import served_model


@pytest.mark.parametrize(("given", "expected"), [(None, 2 << 30), ("16MiB", 16 << 20), (0, 0)])
def test_the_prefix_cache_takes_a_tenth_of_the_free_memory_unless_told(
    given: Any, expected: int, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the default, a size that was given, and 0, which means none."""
    monkeypatch.setattr(served_model, "free_memory", lambda _: 20 << 30)
    app = make_app(make_speculator(model, tokenizer), prefix_cache=given)
    assert app.state.prefix_cache == expected
