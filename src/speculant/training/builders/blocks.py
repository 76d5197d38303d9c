"""New heads of feed-forward blocks: Medusa, Hydra, MLP speculators and blockwise heads.

Residual blocks begin as the identity, so a head begins with what the target itself predicts for the root.
"""

from __future__ import annotations

import torch
from torch import nn

from speculant.drafters.heads.blockwise import BlockwiseHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.hydra import HydraHead, HydraShape
from speculant.drafters.heads.layers import LayerShape
from speculant.drafters.heads.medusa import MedusaHead, MedusaShape
from speculant.drafters.heads.mlp import MLPHead, MLPShape
from speculant.drafters.heads.residual import ResBlock

_HEADS = 4
_SPREAD = 0.02  # of weights that read drafted tokens, at first


def new_medusa(target: TargetParts, *, heads: int = _HEADS, blocks: int = 1, own: bool = False) -> MedusaHead:
    """Return Medusa heads for a target.

    Args:
        target: of the heads.
        heads: how many.
        blocks: residual blocks of each.
        own: whether each has a copy of the target's output projection, as in the paper; else the target's is used,
            which takes V D less weights for each head.
    """
    head = MedusaHead(
        MedusaShape(
            hidden=target.hidden_size,
            vocabulary=target.vocabulary,
            heads=heads,
            blocks=blocks,
            projection="own" if own else "target",
        )
    )
    _copy_projections(head, target)
    return head


def new_hydra(
    target: TargetParts, *, heads: int = _HEADS, blocks: int = 1, prefix: LayerShape | None = None
) -> HydraHead:
    """Return Hydra heads for a target.

    Args:
        target: of the heads.
        heads: how many.
        blocks: residual blocks of each.
        prefix: of the decoder layer of Hydra++, whose inputs are dropped out by 0.2 as in the authors' training; None
            for Hydra.
    """
    head = HydraHead(
        HydraShape(
            hidden=target.hidden_size,
            vocabulary=target.vocabulary,
            heads=heads,
            blocks=blocks,
            prefix=prefix,
            dropout=0.0 if prefix is None else 0.2,
        )
    )
    _copy_projections(head, target)
    for block in head.modules():
        if isinstance(block, ResBlock) and block.res_connection is not None:
            nn.init.normal_(block.res_connection.weight, std=_SPREAD)
            nn.init.zeros_(block.res_connection.bias)
            with torch.no_grad():
                block.res_connection.weight[:, : target.hidden_size] += torch.eye(target.hidden_size)
    return head


def new_mlp(target: TargetParts, *, steps: int = _HEADS, inner: int = 0, tied: bool = False) -> MLPHead:
    """Return an MLP speculator for a target, with a state of D numbers unless `inner` says otherwise."""
    return MLPHead(
        MLPShape(
            hidden=target.hidden_size,
            inner=inner or target.hidden_size,
            vocabulary=target.vocabulary,
            steps=steps,
            tied=tied,
            scaled=True,
        )
    )


def new_blockwise(target: TargetParts, *, heads: int = _HEADS, inner: int = 0) -> BlockwiseHead:
    """Return blockwise heads for a target, each with D inner states unless `inner` says otherwise."""
    return BlockwiseHead(target.hidden_size, inner or target.hidden_size, heads)


def _copy_projections(head: nn.Module, target: TargetParts) -> None:
    """Give all projections to the vocabulary the target's weights."""
    weights = target.projection().detach().float().cpu()
    for each in head.modules():
        if isinstance(each, nn.Linear) and each.weight.shape == weights.shape:
            with torch.no_grad():
                each.weight.copy_(weights)
                if each.bias is not None:
                    each.bias.zero_()
