"""Random DFlash and DSpark heads in each of their forms, and the configs of their checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from block_heads import random_weights
from models import VOCABULARY
from speculant.drafters.heads.dflash.head import DFlashHead
from speculant.drafters.heads.dflash.shape import BlockShape, Convolution, Domino, Selector
from speculant.drafters.heads.layers import LayerShape

SHAPE = LayerShape(hidden=32, inner=48, heads=4, kv_heads=2, head_dim=8, norms=True)
PLAIN = BlockShape(layers=2, size=5, mask=3, vocabulary=VOCABULARY)
BLOCKS = {
    "z-lab": PLAIN,
    "deepspec": replace(PLAIN, anchored=True, own_embeddings=True, own_output=True),
    "dspark": replace(PLAIN, anchored=True, markov=6, confidence=True),
    "sliding": replace(PLAIN, windows=(None, 4), causal=(False, True)),
    "sliding both ways": replace(PLAIN, windows=(3, None)),
    "capped": replace(PLAIN, multiplier=0.5, softcap=2.0),
    "gated": replace(PLAIN, anchored=True, markov=6, markov_kind="gated", confidence=True, confidence_markov=False),
    "rnn": replace(PLAIN, markov=6, markov_kind="rnn"),
    "domino": replace(PLAIN, anchored=True, domino=Domino(state=6, inner=5, plain=1)),
    "domino, own places": replace(PLAIN, domino=Domino(state=6, inner=5)),
    "DFlash 2": replace(PLAIN, selector=Selector(rank=6, candidates=9), convolution=Convolution(taps=2, group=8)),
    "JetSpec": replace(PLAIN, causal=(True, True)),
    "scaled": replace(PLAIN, scale=2.0),
}
PROMPT = [5, 7, 9, 11, 13, 8, 4, 6]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY,
}


def dflash_head(block: BlockShape, **changes: Any) -> DFlashHead:
    """Return a head whose weights spread its logits."""
    head = DFlashHead(SHAPE, block, (0, 1), **changes)
    random_weights(head)
    return head.eval()


def block_config(**changes: Any) -> dict[str, Any]:
    """Return the part of a config that is about blocks."""
    return {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 1]} | changes}
