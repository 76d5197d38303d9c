"""Plain decoding as a drafter: it drafts, learns and keeps nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from speculant.core.drafter import EMPTY_PATH, Needs, NoDrafter, Verified
from speculant.core.tree import DraftTree
from tables import ids


def test_no_drafter_drafts_nothing() -> None:
    """The baseline of every comparison runs the same loop over empty drafts."""
    drafter = NoDrafter()
    session = drafter.open(ids([1, 2, 1, 2, 1]), seed=1)
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=ids([2])))
    assert len(session.propose(64)) == 0
    session.close()
    assert drafter.needs == Needs(top_k=0, hidden_layers=())


def test_no_drafter_has_no_memory(tmp_path: Path) -> None:
    """Saving leaves no file, and loading asks for none."""
    drafter = NoDrafter()
    drafter.save(tmp_path / "memory")
    drafter.load(tmp_path / "memory")
    assert list(tmp_path.iterdir()) == []


def test_the_empty_path() -> None:
    """Rounds without an accepted node share a path of no nodes of the right type."""
    assert (EMPTY_PATH.shape, EMPTY_PATH.dtype) == ((0,), np.int32)
