"""The features: every candidate that is named, once, in the state that its share of a row gives it."""

from __future__ import annotations

import numpy as np

from mixtures import World
from speculant.drafters.mix.cells import find
from speculant.drafters.mix.contexts import CONTEXTS
from speculant.drafters.mix.features import LONGEST_ROW, SHARES, log_band, share_band
from speculant.drafters.mix.repetition import NOWHERE


def test_candidates_are_what_the_rows_name() -> None:
    """Every token of every row, of the late ones and of the repetition, once each, and no other."""
    world = World()
    world.learn(*np.random.default_rng(0).integers(0, 60, 400).tolist())
    hashes = world.hashes()
    rows = []
    for context in range(CONTEXTS):
        cell = find(world.table(context), hashes[context])
        if cell >= 0:
            rows.append(world.table(context).entries.reshape(-1, world.table(context).entries.shape[2])[cell])
    named = {int(entry) % (1 << 20) for row in rows for entry in row if entry >> 20 & 127}
    late = set(world.mixer.cache[0].tolist())
    assert named - late
    assert len(late) == LONGEST_ROW
    for copied, more in ((NOWHERE, set()), (99, {99})):
        count = world.gather(copied=copied, length=5)
        candidates = world.features.candidates[:count].tolist()
        assert len(set(candidates)) == count
        assert set(candidates) == named | late | more
    few = world.features.candidates[: world.gather(maximum=2)].tolist()
    assert set(few) < set(candidates)
    assert set(few) >= set(world.mixer.cache[0, :2].tolist())


def test_bands_of_shares() -> None:
    """Whole counts fall where exact arithmetic puts them; bands rise with the share, and all is a band of its own."""
    for total in range(1, 400):
        for weight in range(1, total + 1):
            if 1000 * weight > 999 * total:
                band = SHARES - 1
            elif 4 * weight < total:
                band = 16 * weight // total
            else:
                band = min(SHARES - 2, 1 + 12 * weight // total)
            assert share_band(np.float32(weight) * (np.float32(1) / np.float32(total))) == band


def test_bands_of_counts() -> None:
    """The binary logarithm, rounded down, up to the most that is asked for."""
    assert [log_band(value, 10) for value in (0, 1, 2, 3, 4, 255, 256, 511, 512, 1 << 40)] == [
        0, 0, 1, 1, 2, 7, 8, 8, 9, 10,
    ]  # fmt: skip
    assert log_band(1 << 20, 3) == 3
