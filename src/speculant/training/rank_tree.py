"""The static tree for a trained head, found from how often tokens of each rank are correct on held-out texts.

This follows Medusa's search (Cai et al. 2024, arXiv 2401.10774, section 2.3.3). Heads that also read drafted tokens are
measured after the tokens of the text.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.static_tree import RankPath
from speculant.drafters.heads.training.recipe import Recipe, TrainBatch
from speculant.drafters.heads.tree_search import rank_accuracies, search_tree


@torch.no_grad()
def measure_ranks(
    recipe: Recipe, batches: Iterable[TrainBatch], target: TargetParts, *, ranks: int = 10
) -> list[list[float]]:
    """Return how often the token of each rank is the text's, by depth and rank.

    Args:
        recipe: recipe of the head, to the depth to measure.
        batches: batches of held-out texts that the target wrote.
        target: target of the head.
        ranks: number of ranks, the most probable first.
    """
    hits, count = torch.zeros(recipe.depth, ranks, dtype=torch.float64), 0
    for batch in batches:
        for depth, output in enumerate(recipe.run(batch, target)):
            hits[depth] += rank_accuracies(output.logits, output.tokens, ranks).double().cpu() * len(output.tokens)
        count += len(batch.anchors)
    found: list[list[float]] = (hits / max(1, count)).tolist()
    return found


def find_tree(
    recipe: Recipe, batches: Iterable[TrainBatch], target: TargetParts, *, nodes: int = 63
) -> tuple[RankPath, ...]:
    """Return the paths of the best tree of `nodes` nodes for a head, given batches of held-out texts."""
    return search_tree(measure_ranks(recipe, batches, target), nodes)
