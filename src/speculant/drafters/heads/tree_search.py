"""The best static tree of N nodes for measured accuracies: Medusa (Cai et al. 2024, arXiv 2401.10774), section 2.3.3.

A node is a rank path: at each depth, the rank of its token among the head's most probable ones. If the token of rank r
at depth d is the target's with probability a[d][r], independently of the others, a path is accepted with the product of
its probabilities, and a tree gains the sum over its nodes. No node is accepted more often than its parent, so the N
most probable paths form a tree, and no tree of N nodes gains more. The authors' search grows a tree by its best
neighbour, and misses ranks after one that is less accurate than the next; this one does not.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from speculant.core.errors import UsageError
from speculant.drafters.heads.static_tree import RankPath


def search_tree(accuracies: Sequence[Sequence[float]], nodes: int) -> tuple[RankPath, ...]:
    """Return the paths of the best tree, most probable first; ties are sorted by length, then by ranks.

    Args:
        accuracies: by depth, starting after the root, and by rank: how often that token is the target's, given that
            the path above it is.
        nodes: number of nodes; fewer are returned if no other can be accepted.

    Raises:
        UsageError: an accuracy is not a probability, those of a depth sum to more than 1, or `nodes` is below 1.
    """
    if nodes < 1:
        raise UsageError(f"a tree needs at least 1 node, not {nodes}.")
    for depth, row in enumerate(accuracies, start=1):
        if any(not 0 <= each <= 1 for each in row) or math.fsum(row) > 1 + 1e-6:
            raise UsageError(f"accuracies of depth {depth} must be from 0 to 1 and sum to at most 1: {list(row)}.")
    ranked = [sorted(range(len(row)), key=lambda rank: (-row[rank], rank)) for row in accuracies]
    found = list[RankPath]()
    waiting: list[
        tuple[float, int, RankPath, int, float]
    ] = []  # negative value, length and path; index of its last rank, parent's value

    def wait(parent: RankPath, value: float, place: int) -> None:
        depth = len(parent)
        if depth < len(ranked) and place < len(ranked[depth]):
            rank = ranked[depth][place]
            if (joint := value * accuracies[depth][rank]) > 0:
                heapq.heappush(waiting, (-joint, depth + 1, (*parent, rank), place, value))

    wait((), 1.0, 0)
    while waiting and len(found) < nodes:
        negative, _, path, place, above = heapq.heappop(waiting)
        found.append(path)
        wait(path, -negative, 0)
        wait(path[:-1], above, place + 1)
    return tuple(found)


def rank_accuracies(logits: Tensor, tokens: Tensor, ranks: int = 10) -> Tensor:
    """Return Float32[ranks], how often the token of each rank is correct.

    Args:
        logits: [A, V'], logits of a head at one depth, on texts of the target.
        tokens: Int64[A], correct tokens in the head's vocabulary; -1 if it lacks them.
        ranks: number of ranks, most probable first; the authors use 10.
    """
    best = logits.topk(min(ranks, logits.shape[-1]), dim=-1).indices
    hits = (best == tokens[:, None]).float().mean(0)
    return torch.cat([hits, hits.new_zeros(ranks - len(hits))])
