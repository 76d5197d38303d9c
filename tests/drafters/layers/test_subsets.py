"""Layers as settings name them."""

from __future__ import annotations

import pytest

from speculant.drafters.layers.subsets import every_other, first_layers, parse_skipped, without


@pytest.mark.parametrize(("count", "skipped"), [(2, (1,)), (3, (1,)), (4, (1,)), (5, (1, 3)), (8, (1, 3, 5))])
def test_every_other_layer(count: int, skipped: tuple[int, ...]) -> None:
    """Guards the default: the first layer always drafts, the last does where there is a choice."""
    assert every_other(count) == parse_skipped("", count) == skipped
    assert without(skipped, count) == tuple(index for index in range(count) if index not in skipped)


def test_layers_are_sorted() -> None:
    """Guards the order of passes, which goes up."""
    assert parse_skipped(" 5, 1", 8) == (1, 5)
    assert first_layers(8, 3, name="layer") == (0, 1, 2)
