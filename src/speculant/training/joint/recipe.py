"""Training of heads together with their model, Medusa-2 (Cai et al. 2024, arXiv 2401.10774, section 2.2.2).

- Combined loss: L = w L_model + sum over depths of decay^(d - 1) L_d; the paper's lambda_0 is 1 / w. The heads learn
  the copy's own distribution, for which they will draft.
- Self-distillation (section 2.3.2): L_model = KL(p_original || p_copy), with the target as the teacher, on texts that
  it wrote. With the loss "ce" it is the cross-entropy of the texts' tokens instead.
- Heads' warm-up: until a share of the training only the heads learn, since their first gradients would distort the
  model.
- Differential learning rates: the model's is a share of the heads'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.depths import anchor_target, anchor_tokens
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.training.batches import stream_seed
from speculant.training.joint.backbone import Backbone
from speculant.training.losses import parse_loss
from speculant.training.settings import TrainSettings


class HeadsWithBackbone(nn.Module):
    """Heads and the copy of the target that is trained with them, as one module.

    Attributes:
        heads: the heads.
        backbone: the copy.
        taps, depth, ids: those of the heads.
    """

    def __init__(self, heads: Any, backbone: Backbone) -> None:
        super().__init__()
        self.heads, self.backbone = heads, backbone
        self.taps, self.depth, self.ids = heads.taps, heads.depth, heads.ids

    def factors(self, share: float) -> dict[nn.Parameter, float]:
        """Return the factors of the learning rate of weights other than the heads'."""
        return dict.fromkeys(self.backbone.parameters(), share)


class JointRecipe(Recipe):
    """Runs a recipe on the states of the copy; its head must read only the states after the final norm."""

    head: HeadsWithBackbone

    def __init__(self, head: HeadsWithBackbone, inner: Recipe, settings: TrainSettings) -> None:
        """Wrap the recipe of the heads."""
        self.head, self.depth, self._inner = head, inner.depth, inner
        self._loss, self._start, self._learning = parse_loss(settings.joint_loss), settings.joint_from, True

    def begin(self, done: float) -> None:
        self._learning = done >= self._start

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        backbone = self.head.backbone
        with torch.set_grad_enabled(self._learning and torch.is_grad_enabled()):
            final = backbone.states(batch.ids)
        extra = self._model_loss(batch, final, target) if final.requires_grad else None
        for output in self._inner.run(replace(batch, final=final), backbone.parts):
            yield replace(output, extra=extra)
            extra = None

    def _model_loss(self, batch: TrainBatch, final: Tensor, target: TargetParts) -> Tensor:
        """Return the loss of the copy at the anchors' rows, which predict the roots."""
        texts, rows = batch.anchors.unbind(1)
        logits = self.head.backbone.parts.project(final[texts, rows])
        return self._loss(logits, anchor_target(batch, target, 0), anchor_tokens(batch, 1))


def join_backbone(heads: nn.Module, model: Any, settings: TrainSettings) -> HeadsWithBackbone:
    """Return heads with a copy of their model to train.

    Raises:
        UnsupportedError: the model cannot be trained, see `Backbone`.
    """
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(settings.seed))
        return HeadsWithBackbone(heads, Backbone(model, settings.rank))
