"""A new head of DFlash's family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from speculant.core.errors import UsageError
from speculant.drafters.heads.dflash.convolution import ConvolvedLayer
from speculant.drafters.heads.dflash.head import DFlashHead
from speculant.drafters.heads.dflash.shape import BlockShape, Convolution, Domino, Selector
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import LayerShape
from speculant.drafters.heads.training.shapes import SPREAD, spread_weights, target_shape

CANDIDATES, TAPS, GROUP = 16, 2, 16  # of published DFlash 2 heads


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
    domino: int = 0,
    selector: int = 0,
    causal: bool = False,
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
        domino: size of Domino's recurrent state; 0 for none.
        selector: rank of DFlash 2's selector, which comes with its convolutions; 0 for none.
        causal: whether a slot sees those before it only (JetSpec).

    Raises:
        UsageError: two corrections are asked for.
    """
    if bool(markov) + bool(domino) + bool(selector) > 1:
        raise UsageError("markov, domino and selector correct the same logits; set one of them.")
    last, config = max(0, target.layers - 2), target.config
    found: Any = getattr(config, "pad_token_id", None) if mask is None else mask
    block = BlockShape(
        layers=layers,
        size=size,
        mask=target.vocabulary - 1 if found is None else int(found),
        anchored=bool(markov) or bool(domino) or confidence,
        causal=(True,) * layers if causal else (),
        markov=markov,
        domino=Domino(state=domino, inner=domino) if domino else None,
        selector=Selector(rank=selector, candidates=CANDIDATES) if selector else None,
        convolution=Convolution(taps=TAPS, group=math.gcd(GROUP, target.hidden_size)) if selector else None,
        scale=1.0 if selector else None,
        confidence=confidence,
        vocabulary=target.vocabulary,
    )
    read = tuple(taps) or tuple(sorted({min(1, last), last // 2, last}))
    head = DFlashHead(shape or target_shape(target, norms=True), block, read)
    spread_weights(head)
    with torch.no_grad():
        head.fc.weight[:, -target.hidden_size :] += torch.eye(target.hidden_size)
        for layer in head.layers if selector else ():
            assert isinstance(layer, ConvolvedLayer)
            for convolution in (layer.attention_conv, layer.mlp_conv):
                convolution.reset()
        if selector:
            for codebook in (head.candidate_selector.predecessor_codebook, head.candidate_selector.successor_codebook):
                codebook.normal_(std=SPREAD)
        for weight in head.domino_head.prefix_gru.values() if domino else ():
            weight.uniform_(-(domino**-0.5), domino**-0.5)
        if markov:
            head.markov_head.markov_w1.weight.normal_(std=SPREAD)
    return head
