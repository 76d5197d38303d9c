"""Random heads that read text: of GLIDE, PaSS and SpecDec."""

from __future__ import annotations

from typing import Any

from block_heads import random_weights
from models import VOCABULARY
from speculant.drafters.heads.glide.cross import target_cross_shape
from speculant.drafters.heads.glide.head import GlideHead
from speculant.drafters.heads.layers import LayerShape
from speculant.drafters.heads.pass_.head import PaSSHead
from speculant.drafters.heads.specdec.head import SpecDecHead

SHAPE = LayerShape(hidden=24, inner=40, heads=3, kv_heads=3, head_dim=8)


def glide_head(parts: Any) -> GlideHead:
    """Return a head for a target of these parts."""
    head = GlideHead(SHAPE, target_cross_shape(parts), vocabulary=VOCABULARY)
    random_weights(head)
    return head.eval()


def pass_head(size: int = 32) -> PaSSHead:
    """Return a head of three learned embeddings of a hidden size."""
    head = PaSSHead(3, size, vocabulary=VOCABULARY)
    random_weights(head)
    return head.eval()


def specdec_head() -> SpecDecHead:
    """Return a head of two layers to read the text and two to draft."""
    head = SpecDecHead(SHAPE, vocabulary=VOCABULARY, encoder=2, decoder=2, block=4)
    random_weights(head)
    return head.eval()
