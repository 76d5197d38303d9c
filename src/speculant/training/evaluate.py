"""How many drafted tokens a head would have accepted on held-out texts."""

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
    """What a head gains after the anchors of held-out texts, in chains as deep as was measured.

    Attributes:
        agreement: by depth, the share of anchors where the head's most probable token is the target's.
        overlap: by depth, 1 - TVD: the probability that speculative sampling at temperature 1 accepts.
        greedy: tokens of a round of greedy decoding with such a chain, the bonus token included; 1 + the mean number
            of depths that agree before the first that does not.
        sampled: likewise at temperature 1, from the overlaps.
        anchors: how many were measured.
    """

    agreement: tuple[float, ...]
    overlap: tuple[float, ...]
    greedy: float
    sampled: float
    anchors: int

    def record(self) -> dict[str, Any]:
        """Return it for a JSON file."""
        return asdict(self)


@torch.no_grad()
def measure_acceptance(recipe: Recipe, features: Features, target: TargetParts) -> Acceptance:
    """Return the acceptance at depths 1 to the recipe's, on all groups of features.

    Deeper tokens are drafted as if those before them had been drafted as the text has them, so texts that were sampled
    make `greedy` an estimate.

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
        if ids is not None:  # tokens that the head lacks are the target's all the same
            chosen, p = ids[chosen], p[:, ids]
        yield (chosen == best).float(), torch.minimum(p, q).sum(-1)


def _full_target(batch: TrainBatch, target: TargetParts, depth: int) -> Tensor:
    texts, places = batch.anchors.unbind(1)
    return target.project(batch.final[texts, places + depth])
