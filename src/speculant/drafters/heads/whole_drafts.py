"""Whole drafts of the most probable paths, for heads without code that grows them in one call.

Each level is one call of the head for all texts; where logits depend only on the depth, all levels are. Nodes are
chosen by compiled code, with the rules of `drafters.models.shapes.BestFirst`; distributions over the vocabulary, which
drawn drafts need, are never formed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numba import njit
from torch import Tensor

from speculant.core.tree import ROOT, Float32, Int32
from speculant.drafters.copying.context import heaviest_first
from speculant.drafters.heads.head import Head, HeadState
from speculant.drafters.heads.layers import join_tensors
from speculant.drafters.heads.step import GrownDraft
from speculant.drafters.models.shapes import GrowthPlan
from speculant.drafters.top_tokens import FEW_TOKENS, best_tokens


def grow_drafts(
    head: Head,
    states: Sequence[HeadState],
    plans: Sequence[GrowthPlan],
    temperatures: Sequence[float],
    *,
    vocabulary: int,
) -> list[GrownDraft | None]:
    """Grow the drafts of several texts of one head; no rows are kept.

    Args:
        head: the head.
        states: states of the texts.
        plans: growth plans of their drafts.
        temperatures: temperatures of their probabilities.
        vocabulary: V of the target.

    Returns:
        The drafts; None for those with NaN or infinite logits.
    """
    growths = [_Growth(plan) for plan in plans]
    if head.parallel:
        levels = head.level_logits(states, max(plan.levels for plan in plans))
        assert all(len(own) >= plan.levels for own, plan in zip(levels, plans, strict=True))
        ranked = _rank(levels, plans, temperatures, head.ids, vocabulary)
        for growth, (ids, probabilities) in zip(growths, ranked, strict=True):
            depth = 0
            while growth.take(ids[depth : depth + 1], probabilities[depth : depth + 1]):
                depth += 1
        return [growth.finish() for growth in growths]
    growing, logits = [*range(len(plans))], head.start_all(states)
    while growing:
        own = [plans[place] for place in growing], [temperatures[place] for place in growing]
        ranked = _rank(logits, *own, head.ids, vocabulary)
        growing = [place for place, level in zip(growing, ranked, strict=True) if growths[place].take(*level)]
        if growing:
            tokens, above = zip(*(growths[place].add_rows() for place in growing), strict=True)
            logits = head.grow_all([states[place] for place in growing], tokens, above)
    for state in states:
        state.drop()
    return [growth.finish() for growth in growths]


def warm_up() -> None:
    """Load the compiled kernels, so that the first request does not wait for them."""
    plan = GrowthPlan(levels=2, top_k=2, expanded=2, nodes=1, ratios=[1.0, 1.0])
    growth, logits = _Growth(plan), torch.zeros(1, FEW_TOKENS + 1)
    for _ in range(2):
        [level] = _rank([logits], [plan], [1.0], None, logits.shape[1])
        growth.take(*level)
    grown = growth.finish()
    assert grown is not None
    heaviest_first(grown.tokens, grown.parents, grown.weights, 1)


def _rank(
    logits: Sequence[Tensor],
    plans: Sequence[GrowthPlan],
    temperatures: Sequence[float],
    ids: Tensor | None,
    vocabulary: int,
) -> list[tuple[Int32, Float32]]:
    """Return, for logits [n, V'] of each text, the top tokens [n, k] and their probabilities, best first."""
    rows = join_tensors(logits).float()
    rows = rows[:, :vocabulary] if ids is None else rows
    sizes, first = [len(own) for own in logits], temperatures[0]
    if all(each == first for each in temperatures):
        scores = rows / first
    else:
        divisors = [each for each, size in zip(temperatures, sizes, strict=True) for _ in range(size)]
        scores = rows / torch.tensor(divisors, device=rows.device)[:, None]
    k = min(max(plan.top_k for plan in plans), scores.shape[-1])
    best, places = best_tokens(scores.softmax(-1), k)
    probabilities = best.cpu().numpy()
    tokens = (places if ids is None else ids[places]).to(torch.int32).cpu().numpy()
    ends = np.cumsum(sizes)
    parts = [(slice(end - size, end), slice(plan.top_k)) for end, size, plan in zip(ends, sizes, plans, strict=True)]
    return [(np.ascontiguousarray(tokens[part]), np.ascontiguousarray(probabilities[part])) for part in parts]


class _Growth:
    """A growing draft."""

    __slots__ = ("_count", "_extended", "_level", "_levels", "_nodes", "_plan", "_rows", "_valid")

    def __init__(self, plan: GrowthPlan) -> None:
        maximum = plan.top_k * (1 + (plan.levels - 1) * plan.expanded)
        self._plan, self._count, self._levels, self._valid = plan, 0, 0, True
        self._nodes: tuple[Int32, Int32, Float32] = (
            np.empty(maximum, np.int32), np.empty(maximum, np.int32), np.empty(maximum, np.float32),
        )  # fmt: skip
        self._level: Int32 = np.array([ROOT], np.int32)  # nodes whose logits come next
        self._rows: dict[int, int] = {ROOT: ROOT}
        self._extended: list[float] = []

    def take(self, ids: Int32, probabilities: Float32) -> bool:
        """Add the candidates below the nodes of the last level and select the next one; return whether there is one.

        Args:
            ids, probabilities: [n, k], best first, for each node of the level; [1, k] if they are the same for all.
        """
        plan = self._plan
        self._valid = bool(np.isfinite(probabilities).all())
        if not self._valid:
            return False
        last = self._levels + 1 == plan.levels
        sizes = 0 if last else plan.expanded, plan.nodes
        ratio, prices = plan.ratios[self._levels], (plan.level_price, plan.row_price)
        limits = map(float, (plan.min_probability, ratio, *prices))  # one type for compiled code
        self._count, self._level, extended = add_level(
            *self._nodes, self._count, self._level, ids, probabilities, *sizes, *limits
        )
        self._levels += 1
        if len(self._level):
            self._extended.append(extended)
        return len(self._level) > 0

    def add_rows(self) -> tuple[list[int], list[int]]:
        """Add a row for each node of the selected level; return their tokens and parent rows."""
        tokens, parents, _ = self._nodes
        nodes = self._level.tolist()
        above = [self._rows[int(parents[node])] for node in nodes]
        first = len(self._rows) - 1
        self._rows |= {node: first + place for place, node in enumerate(nodes)}
        return tokens[nodes].tolist(), above

    def finish(self) -> GrownDraft | None:
        """Return all candidates; None if logits were NaN or infinite."""
        (tokens, parents, weights), count = self._nodes, self._count
        if not self._valid:
            return None
        return GrownDraft(tokens[:count], parents[:count], weights[:count], self._extended)


@njit(cache=True, nogil=True)
def add_level(  # type: ignore[no-untyped-def]
    tokens,
    parents,
    weights,
    count,
    level,
    ids,
    probabilities,
    expanded,
    nodes,
    minimum,
    ratio,
    level_price,
    row_price,
):
    """Add the candidates below a level's nodes and select the nodes of the next level.

    Args:
        tokens, parents, weights: Int32, Int32 and Float32[M], the first `count` are candidates; more are written.
        count: number of candidates.
        level: Int32[n], nodes of the level, -1 for the root.
        ids, probabilities: Int32 and Float32[n, k], top tokens after each node; [1, k] if the same after all.
        expanded: maximum nodes to select; 0 for none.
        nodes, minimum, ratio, level_price, row_price: fields of `GrowthPlan`.

    Returns:
        The number of candidates, the selected nodes Int32[m], best first, and the sum of their weights.
    """
    # 1. Candidates.
    first = count
    for place in range(len(level)):
        node, row = level[place], place if len(ids) > 1 else 0
        joint = np.float32(1) if node < 0 else weights[node]
        for rank in range(ids.shape[1]):
            tokens[count], parents[count] = ids[row, rank], node
            weights[count] = joint * min(np.float32(1), probabilities[row, rank])
            count += 1
    # 2. The best of them that can be in the draft and pay off by themselves.
    if count > nodes:
        minimum = max(minimum, np.sort(weights[:count])[count - 1 - nodes])
    best = np.argsort(-weights[first:count], kind="mergesort")[:expanded] + first
    size = len(best)
    while size > 1 and weights[best[size - 1]] * ratio <= row_price:
        size -= 1
    while size > 0 and weights[best[size - 1]] <= minimum:
        size -= 1
    # 3. Together they must be worth a level.
    selected, total = best[:size].astype(np.int32), np.float32(0)
    for node in selected:
        total += weights[node]
    if total * ratio <= level_price + row_price * (size - 1):
        selected = selected[:0]
    return count, selected, total
