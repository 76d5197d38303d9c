"""Layers and sublayers as settings name them."""

from __future__ import annotations

import pytest

from speculant.core.errors import UnsupportedError
from speculant.core.sublayers import Sublayers
from speculant.drafters.layers.subsets import every_other, first_layers, format_skipped, parse_skipped, without


@pytest.mark.parametrize(("count", "skipped"), [(2, (1,)), (3, (1,)), (4, (1,)), (5, (1, 3)), (8, (1, 3, 5))])
def test_every_other_layer(count: int, skipped: tuple[int, ...]) -> None:
    """Guards the default: the first layer always drafts, the last does where there is a choice."""
    assert every_other(count) == parse_skipped("", count) == Sublayers.whole(skipped)
    left = Sublayers.whole(index for index in range(count) if index not in skipped)
    assert without(Sublayers.whole(skipped), count) == left


@pytest.mark.parametrize(
    ("text", "attention", "mlp", "written"),
    [
        (" 5, 1", (1, 5), (1, 5), "1,5"),
        ("2-4,6", (2, 3, 4, 6), (2, 3, 4, 6), "2-4,6"),
        ("attention 1,3,5; mlp 1-5", (1, 3, 5), (1, 2, 3, 4, 5), "attention 1,3,5; mlp 1-5"),
        ("mlp 6,7", (), (6, 7), "mlp 6,7"),
        ("2; attention 5", (2, 5), (2,), "attention 2,5; mlp 2"),
    ],
)
def test_settings_name_sublayers(text: str, attention: tuple[int, ...], mlp: tuple[int, ...], written: str) -> None:
    """Guards both forms of the setting, and that what is written is read again."""
    found = parse_skipped(text, 8)
    assert found == Sublayers(attention, mlp)
    assert format_skipped(found) == written
    assert parse_skipped(written, 8) == found


def test_first_layers() -> None:
    """Guards the exits, from whose rows the target's pass goes on."""
    assert first_layers(8, 3, name="layer").first == 3
    assert Sublayers((0, 1), (0,)).first is None
    assert Sublayers.whole((1, 2)).first is None


def test_only_whole_layers() -> None:
    """Guards models whose layers cannot be split: the reason and the way out."""
    assert parse_skipped("1,3", 8, whole="a reason") == Sublayers.whole((1, 3))
    with pytest.raises(UnsupportedError, match=r"a reason\. Name whole layers"):
        parse_skipped("mlp 1", 8, whole="a reason")
