"""Static draft trees: a fixed choice of which ranks are drafted below which, independent of the text.

A node is named by its rank path, as in the authors' code: (0,) is the most probable token after the root, (0, 2) the
third most probable one after that. Medusa (Cai et al. 2024, arXiv 2401.10774), Hydra (Ankner et al. 2024, arXiv
2402.05109) and EAGLE-1 (Li et al. 2024, arXiv 2401.15077) publish such trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from speculant.core.engine import MAX_NODES
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree, Float64
from speculant.drafters.models.shapes import Candidate, Level, Shape
from speculant.drafters.models.tree_acceptance import LevelAcceptance
from speculant.drafters.top_tokens import best_tokens

RankPath = tuple[int, ...]


def rank_paths(digits: str) -> tuple[RankPath, ...]:
    """Return rank paths written as words of digits, as in "0 1 00"; ranks are below 10."""
    return tuple(tuple(int(digit) for digit in word) for word in digits.split())


# EAGLE-1's tree of 25 nodes (SafeAILab/EAGLE, choices.py, mc_sim_7b_63).
EAGLE_PATHS = rank_paths("0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001")


class StaticTree(Shape):
    """The tokens of fixed ranks, chosen even if the target samples.

    If fewer nodes are wanted than the tree has, the most probable ones are kept; if nodes may not have siblings, the
    path of ranks 0.
    """

    drawn: Literal["iid", "distinct"] = "iid"
    choosing = True

    def __init__(self, paths: Iterable[RankPath], acceptance: LevelAcceptance) -> None:
        """Set the tree.

        Args:
            paths: rank paths of its nodes, in any order.
            acceptance: acceptance statistics shared by all requests.

        Raises:
            UsageError: the tree is empty or too large, a node is duplicate or lacks its parent, or a rank is negative.
        """
        found = sorted(paths)
        known = {(), *found}
        if not found or len(found) > MAX_NODES or len(known) != len(found) + 1:
            raise UsageError(f"a static tree must have 1 to {MAX_NODES} different nodes, not {len(found)}.")
        for path in found:
            if path[:-1] not in known or path[-1] < 0:
                raise UsageError(f"the node {list(path)} of a static tree has no parent {list(path[:-1])} in it.")
        self._ranks: dict[RankPath, list[int]] = {}
        for path in found:
            self._ranks.setdefault(path[:-1], []).append(path[-1])
        self.passes = max(map(len, found))
        self._acceptance, self._grown = acceptance, 0
        self._level: list[RankPath] = [()]

    def expand(self, level: Level) -> list[Candidate]:
        above = [()] if level.depth == 1 else self._level
        self._grown, self._level = level.depth, []
        found = list[Candidate]()
        for place, path in enumerate(above):
            ranks = self._ranks[path] if level.trees else [rank for rank in self._ranks[path] if rank == 0]
            q = level.q[place]
            best, ids = best_tokens(q[None], min(len(q), max(ranks, default=-1) + 1))
            tokens, values = ids[0].tolist(), best[0].tolist()
            for rank in ranks:
                if rank < len(tokens) and values[rank] > 0:  # if the target samples, q may lack tokens
                    found.append(Candidate(place, tokens[rank], values[rank]))
                    self._level.append((*path, rank))
        return found

    def select(self, weights: Sequence[float]) -> list[int]:
        places = [place for place, path in enumerate(self._level) if path in self._ranks]
        self._level = [self._level[place] for place in places]
        return places

    def forecast(self, nodes: int) -> Float64:
        return self._acceptance.gains(self.passes)

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._acceptance.observe(self._grown, len(path))
