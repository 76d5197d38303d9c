"""A smaller model drafts: chains and trees, one forward pass of the draft model per level.

Leviathan, Kalman, Matias: "Fast Inference from Transformers via Speculative Decoding", ICML 2023, arXiv 2211.17192;
Chen et al.: "Accelerating Large Language Model Decoding with Speculative Sampling", 2023, arXiv 2302.01318; trees as in
`shapes`. The draft model has a `TargetCache` of its own, on any engine, which is kept in step with the target's text.
Where the target is sampled, tokens are sampled from q, warped as the target's p is; else they are the draft model's
most probable ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speculant.core.drafter import Budget, Drafter, Session, Start, Verified
from speculant.core.engine import NO_NEEDS, Array, Needs, TargetCache
from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, DraftTree, Int32, Proposal
from speculant.drafters.models.shapes import BestFirst, Chain, Level, Sequences, Shape, Widths
from speculant.drafters.models.warping import warped

OpenCache = Callable[[Int32], TargetCache]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSettings:
    """Settings of `draft-model`.

    Attributes:
        stop: what ends a chain before the budget does: none, fixed, heuristic, confidence or entropy.
        threshold: of "confidence" (default 0.4) and "entropy" (default 0.3).
        length: tokens of a fixed draft, and of the schedule's first one.
    """

    stop: str = "none"
    threshold: float | None = None
    length: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthsSettings:
    """Settings of `specinfer` and `mcsd`.

    Attributes:
        widths: siblings below each node, level by level, as in 4,2,2.
    """

    widths: str = "4,2,2,1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencesSettings:
    """Settings of `spectr`.

    Attributes:
        sequences: how many are drawn.
    """

    sequences: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFirstSettings:
    """Settings of `opt-tree`.

    Attributes:
        depth: passes of the draft model per round.
        top_k: nodes that a level expands, and candidates of each.
        least: joint probability below which no node is expanded.
    """

    depth: int = 5
    top_k: int = 8
    least: float = 0.0


class DraftModelDrafter(Drafter):
    """Chains: `draft-model`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: ChainSettings | None = None) -> None:
        """Take the draft model.

        Args:
            open_cache: returns a cache of the draft model for a prompt Int32[T], which is not read yet.
            vocabulary: V of the target; logits of the draft model beyond it are left out, missing ones count as -inf.
            settings: None for the defaults.
        """
        chosen = settings or ChainSettings()
        self._setup(open_cache, vocabulary, lambda: Chain(chosen.stop, chosen.threshold, chosen.length))

    def _setup(self, open_cache: OpenCache, vocabulary: int, shape: Callable[[], Shape]) -> None:
        shape()  # settings are checked before the first request
        self._open_cache, self._vocabulary, self._shape = open_cache, vocabulary, shape

    @property
    def needs(self) -> Needs:
        return NO_NEEDS

    def open(self, start: Start) -> Session:
        cache = self._open_cache(start.prompt)
        cache.prefill()
        return DraftModelSession(cache, start, self._vocabulary, self._shape())


class SpecInferDrafter(DraftModelDrafter):
    """Trees of fixed widths, siblings drawn with replacement: `specinfer`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: WidthsSettings | None = None) -> None:
        widths = _widths((settings or WidthsSettings()).widths)
        self._setup(open_cache, vocabulary, lambda: Widths(widths, replacement=True))


class MCSDDrafter(DraftModelDrafter):
    """Trees of fixed widths, siblings drawn without replacement: `mcsd`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: WidthsSettings | None = None) -> None:
        widths = _widths((settings or WidthsSettings()).widths)
        self._setup(open_cache, vocabulary, lambda: Widths(widths, replacement=False))


class SpecTrDrafter(DraftModelDrafter):
    """Several independent sequences: `spectr`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: SequencesSettings | None = None) -> None:
        count = (settings or SequencesSettings()).sequences
        self._setup(open_cache, vocabulary, lambda: Sequences(count))


class OptTreeDrafter(DraftModelDrafter):
    """The most probable paths, chosen: `opt-tree`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: BestFirstSettings | None = None) -> None:
        s = settings or BestFirstSettings()
        self._setup(open_cache, vocabulary, lambda: BestFirst(depth=s.depth, top_k=s.top_k, least=s.least))


class DraftModelSession(Session):
    """One request: the draft model's cache, and the committed tokens that are not in it yet."""

    def __init__(self, cache: TargetCache, start: Start, vocabulary: int, shape: Shape) -> None:
        self._cache, self._sampling, self._vocabulary, self._shape = cache, start.sampling, vocabulary, shape
        self._seed, self._round = start.seed, 0
        self._unread: list[int] = []
        self._after: Array = None  # logits [1, V] after the last token of the cache's committed text
        self._row_of: list[int | None] = []  # the cache's row of each node of the draft

    def propose(self, budget: Budget) -> DraftTree:
        """Return a draft. Asked again before `observe`, it draws the same tokens again."""
        self._cache.rollback()
        self._row_of = []
        depth = min(budget.nodes, budget.depth, self._cache.depth + 1 - max(1, len(self._unread)), self._shape.passes)
        if depth < 1:
            return DraftTree.empty()
        if self._unread:
            read = np.array(self._unread, np.int32)
            result = self._cache.forward(read, np.arange(-1, len(read) - 1, dtype=np.int32))
            self._cache.keep(range(len(read)))
            self._unread, self._after = [], result.logits[-1:]
        return self._grow(depth, budget)

    def _grow(self, depth: int, budget: Budget) -> DraftTree:
        shape, generator = self._shape, self._generator()
        sampled = bool(self._sampling.temperature) and not shape.choosing
        tokens, parents, weights = list[int](), list[int](), list[float]()
        level, q = [ROOT], self._distributions(self._after)
        rows = [q]
        for d in range(1, depth + 1):
            joint = [1.0 if node == ROOT else weights[node] for node in level]
            room = budget.nodes if shape.choosing else budget.nodes - len(tokens)
            found = shape.expand(Level(d, q, joint, room if budget.trees else 1, sampled, generator))
            found = found if budget.trees else found[:1]  # the first one drawn: the others do not choose it
            first = len(tokens)
            for each in found:
                tokens.append(each.token)
                parents.append(level[each.parent])
                weights.append(min(1.0, each.probability) * joint[each.parent])
                self._row_of.append(None)
            level = [first + place for place in shape.select(weights[first:])]
            if not level or d == depth or (not shape.choosing and len(tokens) >= budget.nodes):
                break
            q = self._distributions(self._read(level, tokens, parents))
            rows.append(q)
        if shape.choosing:
            return self._best(tokens, parents, weights, budget.nodes)
        if not tokens:
            return DraftTree.empty()
        proposal = Proposal(torch.cat(rows), shape.drawn) if sampled else None
        return DraftTree(
            np.array(tokens, np.int32), np.array(parents, np.int32), np.array(weights, np.float32), proposal
        )

    def _read(self, level: list[int], tokens: list[int], parents: list[int]) -> Array:
        """Run the draft model over some nodes; return the logits after them."""
        above = [ROOT if parents[node] == ROOT else self._row_of[parents[node]] for node in level]
        result = self._cache.forward(np.array([tokens[node] for node in level], np.int32), np.array(above, np.int32))
        appended = sum(row is not None for row in self._row_of)
        for place, node in enumerate(level):
            self._row_of[node] = appended + place
        return result.logits

    def _best(self, tokens: list[int], parents: list[int], weights: list[float], most: int) -> DraftTree:
        """Return the most probable nodes, best first; all nodes above one are more probable, so none is missing."""
        order = sorted(range(len(tokens)), key=lambda node: (-weights[node], node))[:most]
        place = {ROOT: ROOT} | {node: i for i, node in enumerate(order)}
        self._row_of = [self._row_of[node] for node in order]
        return DraftTree(
            np.array([tokens[node] for node in order], np.int32),
            np.array([place[parents[node]] for node in order], np.int32),
            np.array([weights[node] for node in order], np.float32),
        )

    def _generator(self) -> torch.Generator:
        """Return the random stream of this round."""
        seed = np.random.SeedSequence(self._seed.entropy, spawn_key=(*self._seed.spawn_key, self._round))
        return torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def _distributions(self, logits: Array) -> Tensor:
        """Return the distributions [F, V] of logits, over the target's vocabulary."""
        logits = logits[:, : self._vocabulary]
        if missing := self._vocabulary - logits.shape[1]:
            logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        if not self._sampling.temperature:
            return torch.as_tensor(logits.float().softmax(-1))
        return warped(logits, self._sampling)

    def observe(self, verified: Verified) -> None:
        """Keep the rows of accepted tokens; the other committed tokens are read with the next draft."""
        rows = list[int]()
        for node in verified.path.tolist():
            row = self._row_of[node] if node < len(self._row_of) else None
            if row is None:
                break
            rows.append(row)
        if len(verified.tree):
            self._cache.keep(rows)
            self._shape.learn(int(verified.tree.depths().max()), len(verified.path))
        self._row_of = []
        self._round += 1
        self._unread += verified.tokens[len(rows) :].tolist()

    def close(self) -> None:
        self._cache.release()


def _widths(text: str) -> list[int]:
    """Return the numbers of a setting such as 4,2,2.

    Raises:
        UsageError: it is none.
    """
    try:
        return [int(each) for each in str(text).split(",")]
    except ValueError as error:
        raise UsageError(f"widths are numbers, as in 4,2,2, not {text!r}.") from error
