"""New P-EAGLE heads, of the target's own layer sizes."""

from __future__ import annotations

from speculant.core.tree import Int64
from speculant.drafters.heads.eagle3.new import begin_as_target, eagle3_shape
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.p_eagle.head import PEagleHead


def new_p_eagle(
    target: TargetParts, *, counts: Int64, depth: int, layers: int = 2, vocabulary: int = 0, own_output: bool = True
) -> PEagleHead:
    """Return a head that drafts all depths in one pass.

    Args:
        target: of the head.
        counts, vocabulary, own_output: as of `new_eagle3`.
        depth: how many tokens it drafts.
        layers: how many decoder layers it has.
    """
    shape, ids = eagle3_shape(target, counts, vocabulary, own_output, layers)
    head = PEagleHead(shape, mask_token=int(counts.argmin()), depth=depth, ids=ids)
    begin_as_target(head, target)
    return head
