"""The most used contexts of a memory."""

from __future__ import annotations

import numpy as np

from speculant.core.drafter import Inspectable, SessionRequest
from speculant.drafters.mix.drafter import MixDrafter


def test_top_contexts_are_those_of_the_text() -> None:
    """Guards the search from the front: pairs by their uses, with what followed them."""
    drafter = MixDrafter(vocabulary=50, memory_limit=1 << 20)
    assert isinstance(drafter, Inspectable)
    assert drafter.top_contexts(5) == []
    drafter.open(SessionRequest(prompt=np.array([1, 2, 3] * 8 + [7, 8, 9], np.int32)))
    found = drafter.top_contexts(5)
    assert {context.tokens for context in found[:3]} == {(1, 2), (2, 3), (3, 1)}
    assert found[0].uses >= found[1].uses >= found[2].uses >= 6
    assert {context.tokens: context.following[0][0] for context in found[:3]} == {(1, 2): 3, (2, 3): 1, (3, 1): 2}
    assert len(drafter.top_contexts(1)) == 1
