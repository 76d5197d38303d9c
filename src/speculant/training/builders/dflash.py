"""A new DFlash or DSpark head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from speculant.drafters.heads.block_shape import BlockShape
from speculant.drafters.heads.dflash import DFlashHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import LayerShape
from speculant.training.builders.shapes import SPREAD, spread_weights, target_shape


def new_dflash(
    target: TargetParts,
    *,
    shape: LayerShape | None = None,
    mask: int | None = None,
    layers: int = 1,
    size: int = 5,
    taps: Sequence[int] = (),
    markov: int = 0,
    confidence: bool = False,
) -> DFlashHead:
    """Return a head in z-lab's convention, or in DeepSpec's where it has what only that holds.

    Its context begins as the last tapped state, so that a short training need not find it.

    Args:
        target: of the head.
        shape: of its layers, with normalised queries and keys; None for the target's sizes.
        mask: a token that stands for unknown ones; None for the target's padding, or else its last token.
        layers: how many.
        size: slots of a block.
        taps: layers of the target, from 0, that it reads; () for three. Not the last one, whose output has a norm in
            one convention and none in another.
        markov: rank of a Markov head; 0 for none.
        confidence: whether a head predicts acceptance.
    """
    last, config = max(0, target.layers - 2), target.config
    found: Any = getattr(config, "pad_token_id", None) if mask is None else mask
    block = BlockShape(
        layers=layers,
        size=size,
        mask=target.vocabulary - 1 if found is None else int(found),
        anchored=bool(markov) or confidence,
        markov=markov,
        confidence=confidence,
        vocabulary=target.vocabulary,
    )
    read = tuple(taps) or tuple(sorted({min(1, last), last // 2, last}))
    head = DFlashHead(shape or target_shape(target, norms=True), block, read)
    spread_weights(head)
    with torch.no_grad():
        head.fc.weight[:, -target.hidden_size :] += torch.eye(target.hidden_size)
        if markov:
            head.markov_head.markov_w1.weight.normal_(std=SPREAD)
    return head
