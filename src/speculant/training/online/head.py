"""Online learning of a head: forward KL to the target's distributions at the depths at which its drafts were wrong.

The target's hidden states are stored, so its distributions are complete, and the head runs by its recipe as in
training. A wrong draft of depth d after token i started from the root d - 1 tokens before, so the recipe's anchor is d
rows before i; only the wrong depth counts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from speculant.drafters.heads.head import Head, TargetParts
from speculant.drafters.heads.training.recipe import Recipe, TrainBatch
from speculant.training.losses import forward_kl
from speculant.training.online.learner import Learner, rate_drafts
from speculant.training.online.recorder import from_16_bits
from speculant.training.online.window import TextWindow

_LAST = -1  # index of the last decoder layer
_ANCHORS = 32  # maximum anchors per window for measuring acceptance


class HeadLearner(Learner):
    """A head and its recipe."""

    states = True

    def __init__(
        self,
        head: nn.Module,
        recipe: Callable[[nn.Module], Recipe],
        target: TargetParts,
        *,
        feature_weight: float = 0.0,
    ) -> None:
        """Copy a head.

        Args:
            head: the drafting head.
            recipe: returns the recipe of a head.
            target: target of the head.
            feature_weight: weight of the recipe's own loss, such as the distance of hidden states.
        """
        self.live, self._target, self._feature_weight = head, target, feature_weight
        self.copy = copy.deepcopy(head).float().eval().requires_grad_(True)
        self._recipe = recipe(self.copy)
        taps = tuple(cast("Head", head).taps)
        self._layers, self._taps = with_last(taps), len(taps)

    def loss(self, window: TextWindow) -> Tensor | None:
        anchors, depths = wrong_anchors(window, self._recipe.depth)
        if not anchors:
            return None
        at, total = torch.tensor(depths), torch.zeros(())
        for depth, out in enumerate(self._recipe.run(self._batch(window, anchors), self._target), 1):
            rows = (at == depth).to(out.logits.device)
            total = total.to(out.logits.device)
            if out.extra is not None and self._feature_weight:
                total = total + self._feature_weight * len(anchors) / self._recipe.depth * out.extra
            if bool(rows.any()):
                total = total + forward_kl(out.logits[rows].float(), out.target[rows].float(), out.tokens[rows]).sum()
        return total / len(anchors)

    @torch.no_grad()
    def acceptance(self, window: TextWindow) -> tuple[float, int]:
        """Return the gain of chains of the recipe's depth, and the number of roots measured."""
        rows = anchors_of(window, self._recipe.depth)
        if not rows:
            return 0.0, 0
        chosen = [rows[place] for place in np.linspace(0, len(rows) - 1, min(_ANCHORS, len(rows))).astype(int)]
        gained, reached = torch.zeros(len(chosen)), torch.ones(len(chosen))
        for out in self._recipe.run(self._batch(window, chosen), self._target):
            p, q = out.target.float().softmax(-1), out.logits.float().softmax(-1)
            reached = reached * rate_drafts(p, q, greedy=window.greedy).cpu()
            gained = gained + reached
        return float(gained.sum()), len(chosen)

    def _batch(self, window: TextWindow, anchors: Sequence[int]) -> TrainBatch:
        assert window.hidden is not None
        device = next(self.copy.parameters()).device
        states = from_16_bits(window.hidden).to(device)
        with torch.no_grad():
            final = self._target.norm(states[:, self._layers.index(_LAST)]).float()
        return TrainBatch(
            ids=torch.from_numpy(window.tokens).long()[None].to(device),
            lengths=torch.tensor([len(window.tokens)], device=device),
            hidden=states[None, :, : self._taps],
            final=final[None],
            anchors=torch.tensor([[0, row] for row in anchors], device=device),
        )


def with_last(taps: tuple[int, ...]) -> tuple[int, ...]:
    """Return the layers whose states are stored: those that a head taps, and the last, from which p is computed."""
    return taps if _LAST in taps else (*taps, _LAST)


def wrong_anchors(window: TextWindow, depth: int) -> tuple[list[int], list[int]]:
    """Return the anchors below which drafts were wrong, and the wrong depth of each.

    Anchors without states, or with too little text after them for the recipe, are skipped. Errors deeper than the
    recipe's depth are trained at its last depth.
    """
    usable = set(anchors_of(window, depth))
    anchors, depths = list[int](), list[int]()
    for row in np.flatnonzero(window.wrong).tolist():
        at = min(int(window.wrong[row]), depth)
        if row - at in usable:
            anchors.append(row - at)
            depths.append(at)
    return anchors, depths


def anchors_of(window: TextWindow, depth: int) -> list[int]:
    """Return the rows after which a draft of this depth can be compared with text that the target wrote."""
    last = len(window.tokens) - depth - 2
    return [row for row in range(last) if window.known[row + 1]]
