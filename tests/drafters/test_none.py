"""Plain decoding as a drafter: it drafts, learns and keeps nothing."""

from __future__ import annotations

from rounds import budget, start
from speculant.core.drafter import EMPTY_PATH, Persistent, Verified
from speculant.core.engine import NO_OUTPUTS
from speculant.core.tree import DraftTree
from speculant.drafters.none import NoDrafter
from tables import ids


def test_no_drafter_drafts_nothing() -> None:
    """The baseline of every comparison runs the same loop over empty drafts."""
    drafter = NoDrafter()
    session = drafter.open(start([1, 2, 1, 2, 1]))
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=ids([2])))
    assert len(session.propose(budget(64))) == 0
    session.close()
    assert drafter.needs == NO_OUTPUTS
    assert not isinstance(drafter, Persistent)
