"""Training of EAGLE-1, and of HASS with several depths.

EAGLE (Li et al. 2024, arXiv 2401.15077, section 4.2) is trained at one depth: its own loss is the smooth L1 distance
between the predicted hidden state and the true one, weighted ten times as much as the divergence of the tokens. HASS
(Zhang et al., ICLR 2025, arXiv 2408.15766) continues from predicted states for three or four depths, without gradients
from one to the next, and adds a loss over the target's ten most probable tokens ("top").
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from speculant.drafters.heads.eagle.head import EagleHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import spread_weights, target_shape
from speculant.drafters.heads.training.unrolled import Unrolled

_NOISE_TOKENS = 512  # length of text at which noise has its nominal size


class EagleRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`."""

    head: EagleHead

    def __init__(self, head: EagleHead, depth: int = 1, *, detach: bool = True, noise: float = 0.0) -> None:
        """Set the head.

        Args:
            head: head to be trained.
            depth: 1 for EAGLE, 3 or 4 for HASS.
            detach: whether to stop gradients from one depth to the one before.
            noise: amplitude of the uniform noise added to the states of a text of 512 tokens where gradients are
                computed; inversely proportional to the length of the text. The authors use 0.1. Drawn from torch's
                default generator.
        """
        self.head, self.depth, self._detach, self._noise = head, depth, detach, noise

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        text, place = batch.anchors.unbind(1)
        rows = Unrolled(self.head, batch.anchors, len(batch.ids))
        states = self._noisy(batch.final[:, :-1].to(self.head.fc.weight.dtype), batch.lengths)
        found = rows.start(self.head.embed(batch.ids[:, 1:], target), states)
        for depth in range(1, self.depth + 1):
            if depth > 1:
                before = found.detach() if self._detach else found
                found = rows.follow(self.head.embed(batch.ids[text, place + depth], target), before)
            true = batch.final[text, place + depth]
            with torch.no_grad():
                wanted = target.project(true)
            yield DepthOutput(
                logits=self.head.logits(found, target),
                target=wanted,
                tokens=batch.ids[text, place + depth + 1],
                extra=smooth_l1_loss(found.float(), true.float()),
            )

    def _noisy(self, states: Tensor, lengths: Tensor) -> Tensor:
        if not self._noise or not torch.is_grad_enabled():
            return states
        size = self._noise * _NOISE_TOKENS / lengths.clamp(min=1)
        return states + (2 * torch.rand_like(states) - 1) * size[:, None, None].to(states.dtype)


def new_eagle(target: TargetParts) -> EagleHead:
    """Return a head that initially passes the hidden state on: `fc` is the identity on it, plus noise.

    `fc` has no bias, as in the authors' heads for Llama 3, since not every engine supports one.
    """
    head = EagleHead(target_shape(target), bias=False)
    spread_weights(head)
    with torch.no_grad():
        head.fc.weight[:, target.hidden_size :] += torch.eye(target.hidden_size)
    return head
