"""Random heads of feed-forward blocks on a tiny target, none of whose weights is zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from models import VOCABULARY, deep_model
from speculant.drafters.heads.blockwise.head import BlockwiseHead
from speculant.drafters.heads.hydra.head import HydraHead, HydraShape
from speculant.drafters.heads.layers import LayerShape
from speculant.drafters.heads.medusa.head import MedusaHead, MedusaShape
from speculant.drafters.heads.mlp.head import MLPHead, MLPShape
from speculant.engines.hf.views.target_parts import HFTargetParts

HIDDEN = 32  # of deep_model
HEADS = 3
PREFIX = LayerShape(hidden=HIDDEN, inner=48, heads=4, kv_heads=2, head_dim=8)


def tiny_target(name: str = "llama") -> HFTargetParts:
    """Return the parts of a tiny target."""
    return HFTargetParts(deep_model(name))


def randomised(head: Any) -> Any:
    """Return a head with new weights everywhere, for evaluation."""
    source = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=source) * (0.3 if weight.ndim > 1 else 0.5))
    return head.eval().requires_grad_(False)


def new_medusa(**changes: Any) -> MedusaHead:
    """Return Medusa heads of two blocks each."""
    ids = changes.pop("ids", None)
    shape: dict[str, Any] = {"hidden": HIDDEN, "vocabulary": VOCABULARY, "heads": HEADS, "blocks": 2} | changes
    head: MedusaHead = randomised(MedusaHead(MedusaShape(**shape), ids=ids))
    return head


def new_hydra(**changes: Any) -> HydraHead:
    """Return Hydra heads of three blocks each; `prefix=PREFIX` makes them Hydra++."""
    shape: dict[str, Any] = {"hidden": HIDDEN, "vocabulary": VOCABULARY, "heads": HEADS, "blocks": 3} | changes
    head: HydraHead = randomised(HydraHead(HydraShape(**shape)))
    return head


def new_mlp(**changes: Any) -> MLPHead:
    """Return an MLP speculator."""
    shape: dict[str, Any] = {"hidden": HIDDEN, "inner": 24, "vocabulary": VOCABULARY, "steps": HEADS} | changes
    head: MLPHead = randomised(MLPHead(MLPShape(**shape)))
    return head


def new_blockwise() -> BlockwiseHead:
    """Return blockwise heads."""
    head: BlockwiseHead = randomised(BlockwiseHead(HIDDEN, 16, HEADS))
    return head


def heads() -> dict[str, nn.Module]:
    """Return a head of every kind and variant, by name."""
    return {
        "medusa": new_medusa(),
        "medusa-shared": new_medusa(projection="target", shared=False),
        "hydra": new_hydra(),
        "hydra++": new_hydra(prefix=PREFIX),
        "hydra-layer": new_hydra(layer=1),
        "mlp": new_mlp(scaled=True),
        "mlp-tied": new_mlp(tied=True),
        "blockwise": new_blockwise(),
    }
