"""Measures how many drafted tokens of a head would have been accepted on held-out texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from speculant.core.errors import UsageError
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.recipe import Recipe, TrainBatch
from speculant.training.features import Features


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The acceptance of a head after the anchors of held-out texts, in chains of the measured depth.

    Attributes:
        agreement: by depth, the share of anchors at which the head's most probable token is the target's.
        overlap: by depth, 1 - TVD: the acceptance probability of speculative sampling at temperature 1.
        greedy: tokens per round of greedy decoding with such a chain, including the bonus token: 1 + the mean number of
            depths that agree before the first that does not.
        sampled: likewise at temperature 1, from the overlaps.
        anchors: number of measured anchors.
    """

    agreement: tuple[float, ...]
    overlap: tuple[float, ...]
    greedy: float
    sampled: float
    anchors: int

    def record(self) -> dict[str, Any]:
        """Return the figures for a JSON file."""
        return asdict(self)


@torch.no_grad()
def measure_acceptance(recipe: Recipe, features: Features, target: TargetParts) -> Acceptance:
    """Measure the acceptance at depths 1 to the recipe's, on all groups of features.

    Deeper tokens are drafted as if the previous drafts matched the text, so `greedy` is an estimate for sampled texts.

    Raises:
        UsageError: there are no anchors: the draft models trained before leave nothing to learn.
    """
    agreement, overlap = torch.zeros(recipe.depth), torch.zeros(recipe.depth)
    lengths, count = torch.zeros(2), 0
    ids: Tensor | None = getattr(recipe.head, "ids", None)
    for group in range(len(features.groups)):
        batch = features.held_out_batch(group)
        kept = torch.ones(2, len(batch.anchors), device=batch.ids.device)
        for depth, (agreed, shared) in enumerate(_compare(recipe, batch, target, ids)):
            agreement[depth] += agreed.sum().cpu()
            overlap[depth] += shared.sum().cpu()
            kept *= torch.stack([agreed, shared])
            lengths += kept.sum(1).cpu()
        count += len(batch.anchors)
    if not count:
        raise UsageError(
            "the draft models of --before predict every token of the held-out texts, so there is nothing left to "
            "learn. Leave one out, or name more data."
        )
    greedy, sampled = (1 + lengths / count).tolist()
    return Acceptance(tuple((agreement / count).tolist()), tuple((overlap / count).tolist()), greedy, sampled, count)


def _compare(
    recipe: Recipe, batch: TrainBatch, target: TargetParts, ids: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each depth whether head and target agree, and 1 - TVD, each Float32[A]."""
    for depth, output in enumerate(recipe.run(batch, target), start=1):
        wanted = _full_target(batch, target, depth) if ids is not None else output.target
        p, q = wanted.float().softmax(-1), output.logits.float().softmax(-1)
        chosen = q.argmax(-1)
        best = p.argmax(-1)
        if ids is not None:  # the target keeps the probability of tokens that the head lacks
            chosen, p = ids[chosen], p[:, ids]
        yield (chosen == best).float(), torch.minimum(p, q).sum(-1)


def _full_target(batch: TrainBatch, target: TargetParts, depth: int) -> Tensor:
    texts, places = batch.anchors.unbind(1)
    return target.project(batch.final[texts, places + depth])
