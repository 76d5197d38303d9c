"""Drafts of the most probable nodes, for draft models and for replays, which run without torch."""

from __future__ import annotations

import numpy as np

from speculant.core.tree import ROOT, DraftTree


def top_nodes(tokens: list[int], parents: list[int], weights: list[float], maximum: int) -> DraftTree:
    """Return the most probable nodes, best first; ancestors are at least as probable, so none is missing.

    Args:
        tokens, parents, weights: tokens, parents and weights of N nodes.
        maximum: number of nodes to keep.
    """
    order = sorted(range(len(tokens)), key=lambda node: (-weights[node], node))[:maximum]
    place = {ROOT: ROOT} | {node: i for i, node in enumerate(order)}
    return DraftTree(
        np.array([tokens[node] for node in order], np.int32),
        np.array([place[parents[node]] for node in order], np.int32),
        np.array([weights[node] for node in order], np.float32),
    )
