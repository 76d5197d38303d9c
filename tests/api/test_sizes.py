"""Draft sizing over the lifetime of a speculator: the room of a pass."""

from __future__ import annotations

from speculant.api.sizes import max_rows
from speculant.core.engine import RequestedOutputs


def test_large_batches_have_room_for_every_text() -> None:
    """Guards batches of 64: with the nodes of a single draft, each text would get one."""
    needs = RequestedOutputs()
    assert [max_rows(needs, size) for size in (1, 16, 64)] == [64, 15 + 64, 63 + 3 * 64]
