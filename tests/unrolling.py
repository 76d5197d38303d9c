"""Batches of random texts for recipes, and what a head drafts in them step by step."""

from __future__ import annotations

import torch
from torch import Tensor

from eagles import HIDDEN
from models import VOCABULARY
from speculant.drafters.heads.head import Head
from speculant.drafters.heads.training.recipe import TrainBatch
from speculant.engines.hf.views.target_parts import HFTargetParts


def training_batch(taps: int, target: HFTargetParts | None = None) -> TrainBatch:
    """Return three texts of 14 to 20 tokens with random states, and anchors in any order, none in the last text.

    With a target, final states are the one tap's after its norm, as where a head taps the last layer.
    """
    torch.manual_seed(11)
    lengths = torch.tensor([14, 20, 17])
    ids = torch.randint(0, VOCABULARY, (3, 20))
    hidden = torch.randn(3, 20, taps, HIDDEN)
    final = torch.randn(3, 20, HIDDEN)
    if target is not None:
        with torch.no_grad():
            final = target.norm(hidden[:, :, -1])
    return TrainBatch(ids, lengths, hidden, final, torch.tensor([[1, 9], [0, 3], [1, 0], [0, 6], [1, 10]]))


def drafted_logits(head: Head, target: HFTargetParts, batch: TrainBatch, row: int, depth: int) -> Tensor:
    """Return the logits [depth, V'] after an anchor, drafted step by step from a cache along the text's own tokens."""
    text, place = batch.anchors[row].tolist()
    state = head.open(0, target)
    with torch.inference_mode():
        state.extend(batch.hidden[text, : place + 1], batch.ids[text, 1 : place + 2])
        found = [state.start()]
        for step in range(1, depth):
            found.append(state.grow([int(batch.ids[text, place + 1 + step])], [step - 2]))
    return torch.cat(found).clone()


def target_rows(target: HFTargetParts, batch: TrainBatch, text: int, place: int) -> Tensor:
    """Return the target's logits [V] after a token."""
    with torch.no_grad():
        return target.project(batch.final[text, place])
