"""EAGLE: one decoder layer that predicts the target's next hidden state, and with it the next token.

Li, Wei, Zhang, Zhang: "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", ICML 2024, arXiv
2401.15077. EAGLE-2 (arXiv 2406.16858) has the same weights and other trees; HASS (Zhang et al., ICLR 2025, arXiv
2408.15766) trains them differently.

The features in `feature_state` are f_i, the target's states after the final norm, and a row's output stands for
f_(i+1): the target's own output projection gives the logits, without another norm.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from speculant.core.engine import LAST_LAYER
from speculant.drafters.heads.feature_state import JointHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import DecoderLayer, LayerShape, Rotary
from speculant.drafters.heads.static_tree import EAGLE_PATHS
from speculant.drafters.heads.step import StepParts


class EagleHead(nn.Module, JointHead):
    """The weights, named as in the authors' checkpoints."""

    taps = (LAST_LAYER,)
    depth = None
    paths = EAGLE_PATHS

    def __init__(self, shape: LayerShape, *, bias: bool = True) -> None:
        """Build a head with random weights.

        Args:
            shape: shape of its decoder layer; D is the target's.
            bias: whether `fc` has a bias.
        """
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden, bias=bias)
        self.layers = nn.ModuleList([DecoderLayer(shape, first_norm=False)])
        self.rotary = Rotary(shape)
        self.ids: Tensor | None = None

    def embed(self, ids: Tensor, target: TargetParts) -> Tensor:
        return target.embed(ids)

    def features(self, hidden: Tensor, target: TargetParts) -> Tensor:
        return target.norm(hidden[..., -1, :])

    def layer_input(self, index: int, embeddings: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        fused: Tensor = self.fc(torch.cat([embeddings.to(x.dtype), x], dim=-1).to(self.fc.weight.dtype))
        return fused, self.layer(index).attention_input(fused)

    def step_parts(self) -> StepParts:
        return StepParts(
            fuse=self.fc,
            layers=(self.layer(0),),
            normed_residual=False,
            norm=None,
            carries_norm=False,
            output=None,
            rotary=self.rotary,
            embeddings=None,
            ids=self.ids,
        )

    def with_vocabulary(self, ids: Tensor) -> EagleHead | None:
        if self.ids is not None:
            return None
        found = copy.copy(self)
        found.ids = ids
        return found

    def carry(self, x: Tensor) -> Tensor:
        return x

    def logits(self, features: Tensor, target: TargetParts) -> Tensor:
        return target.project(features)
