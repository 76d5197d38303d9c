"""Predictive Pipelined Decoding: an intermediate layer's guesses start the next token early.

Yang et al.: "Predictive Pipelined Decoding: A Compute-Latency Trade-off for Exact LLM Decoding", 2023, arXiv
2307.05908. While a token is still in the upper layers, the paper takes the top k tokens of an intermediate layer, and k
further devices begin the token after each of these guesses. When the last layer decides, the device with the right
guess continues, and the others start again. One device cannot do this in parallel, so here the guesses are siblings
below the root, each continued by the intermediate layer's most probable tokens until the tree is `depth` deep, and one
pass through all layers verifies the tree: k pipelines in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from speculant.core.engine import MAX_NODES
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree, Float64
from speculant.drafters.models.shapes import MAX_PASSES, Candidate, Level, Shape, draw_below
from speculant.drafters.models.tree_acceptance import LevelAcceptance


class Guesses(Shape):
    """The most probable tokens below the root, and the most probable continuation of each."""

    drawn: Literal["iid", "distinct"] = "iid"
    choosing = True

    def __init__(self, acceptance: LevelAcceptance, *, top_k: int, depth: int) -> None:
        """Create the shape.

        Args:
            acceptance: acceptance by level, shared by all requests.
            top_k: nodes per level.
            depth: number of levels.
        """
        if not 1 <= top_k <= MAX_NODES:
            raise UsageError(f"guesses must be from 1 to {MAX_NODES}, not {top_k}.")
        if not 1 <= depth <= MAX_PASSES:
            raise UsageError(f"length must be from 1 to {MAX_PASSES}, not {depth}.")
        if top_k * depth > MAX_NODES:
            raise UsageError(
                f"{top_k} guesses {depth} deep make {top_k * depth} nodes; at most {MAX_NODES} can be verified."
            )
        self.passes, self._top_k = depth, top_k
        self._acceptance, self._grown = acceptance, 0

    def expand(self, level: Level) -> list[Candidate]:
        self._grown = level.depth
        width = self._top_k if level.depth == 1 else 1
        return [each for place in range(len(level.q)) for each in draw_below(level, place, width, distinct=True)]

    def forecast(self, nodes: int) -> Float64:
        return self._acceptance.gains(self.passes)

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        self._acceptance.observe(self._grown, len(path))
