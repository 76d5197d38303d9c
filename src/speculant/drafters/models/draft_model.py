"""Drafting with a smaller model: chains and trees, one forward pass of the draft model per level.

Leviathan, Kalman, Matias: "Fast Inference from Transformers via Speculative Decoding", ICML 2023, arXiv 2211.17192;
Chen et al.: "Accelerating Large Language Model Decoding with Speculative Sampling", 2023, arXiv 2302.01318; trees as in
`shapes`. The draft model has its own `TargetCache`, on any engine, which is kept in step with the target's text. When
the target samples, tokens are sampled from q, which is warped like the target's p; otherwise they are the draft model's
most probable ones, as for rules that take chosen tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from speculant.core.drafter import Drafter, Session, SessionRequest
from speculant.core.engine import MAX_NODES, RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.sampler import GREEDY
from speculant.drafters.models.draft_text import DraftText, OpenCache
from speculant.drafters.models.drawn_trees import Sequences, Widths
from speculant.drafters.models.level_session import LevelSession
from speculant.drafters.models.merged import MergedSession, UntaughtSession
from speculant.drafters.models.sequoia import AdaptiveTrees, BestTree
from speculant.drafters.models.shapes import BestFirst, Chain, Shape
from speculant.drafters.models.tree_acceptance import LevelAcceptance, LevelGains, SiblingAcceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSettings:
    """Settings of `draft-model`.

    Attributes:
        stop: criterion that ends a chain before the budget does: none, fixed, heuristic, confidence, joint or entropy.
        threshold: threshold of "confidence" (default 0.4), "joint" (0.1) or "entropy" (0.3).
        length: tokens of a fixed draft, and of the first draft under "heuristic".
    """

    stop: str = "none"
    threshold: float | None = None
    length: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackSettings:
    """Settings of `bild`.

    Attributes:
        fallback: the target takes over when no token of the draft model reaches this probability.
    """

    fallback: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthsSettings:
    """Settings of `specinfer` and `mcsd`.

    Attributes:
        widths: siblings below each node, one number per level, as in 4,2,2.
        max_nodes: maximum nodes per draft; drafts are cut to what the engine has room for.
    """

    widths: str = "4,2,2,1"
    max_nodes: int = MAX_NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencesSettings:
    """Settings of `spectr`.

    Attributes:
        sequences: number of sequences drawn.
        max_nodes: maximum nodes per draft; drafts are cut to what the engine has room for.
    """

    sequences: int = 4
    max_nodes: int = MAX_NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFirstSettings:
    """Settings of `opt-tree`.

    Attributes:
        depth: passes of the draft model per round.
        top_k: nodes expanded per level, and candidates per expanded node.
        min_probability: minimum joint probability of a node that is expanded.
        max_nodes: maximum nodes per draft; drafts are cut to what the engine has room for.
    """

    depth: int = 5
    top_k: int = 8
    min_probability: float = 0.0
    max_nodes: int = MAX_NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class BestTreeSettings:
    """Settings of `sequoia`.

    Attributes:
        depth: maximum passes of the draft model per round.
        siblings: maximum siblings below one node.
        max_nodes: maximum nodes per draft; drafts are cut to what the engine has room for.
    """

    depth: int = 8
    siblings: int = 8
    max_nodes: int = MAX_NODES


class DraftModelDrafter(Drafter):
    """Drafter of chains: `draft-model`."""

    _sampled = True

    def __init__(
        self,
        open_cache: OpenCache,
        *,
        vocabulary: int,
        settings: ChainSettings | None = None,
        sampled: bool = True,
    ) -> None:
        """Set up the draft model.

        Args:
            open_cache: returns an unread cache of the draft model for a prompt Int32[T].
            vocabulary: V of the target; the draft model's logits beyond it are dropped, missing ones count as -inf.
            settings: None for the defaults.
            sampled: whether tokens are drawn from q when the target samples; else the most probable ones are chosen.
        """
        self._sampled = sampled
        chosen, acceptance = settings or ChainSettings(), LevelAcceptance()
        self._setup(open_cache, vocabulary, lambda: Chain(acceptance, chosen.stop, chosen.threshold, chosen.length))

    def _setup(
        self, open_cache: OpenCache, vocabulary: int, shape: Callable[[], Shape], max_nodes: int = MAX_NODES
    ) -> None:
        shape()  # validates the settings before the first request
        self._open_cache, self._vocabulary, self._shape = open_cache, vocabulary, shape
        self._max_nodes = max_nodes

    @property
    def needs(self) -> RequestedOutputs:
        return RequestedOutputs(max_nodes=self._max_nodes)

    def open_text(self, start: SessionRequest) -> DraftText:
        """Return a request's text on the draft model."""
        return DraftText.open(self._open_cache, start, self._vocabulary)

    def open(self, start: SessionRequest) -> Session:
        asked = start if self._sampled else replace(start, sampling=GREEDY)
        return LevelSession(self.open_text(start), asked, self._shape())


class BiLDDrafter(DraftModelDrafter):
    """Drafter of chains that end when the draft model is not confident: `bild`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: FallbackSettings | None = None) -> None:
        threshold, acceptance = (settings or FallbackSettings()).fallback, LevelAcceptance()
        self._setup(open_cache, vocabulary, lambda: Chain(acceptance, "confidence", threshold))


class SpecInferDrafter(DraftModelDrafter):
    """Drafter of trees of fixed widths, drawn with replacement, from one or several draft models: `specinfer`."""

    def __init__(
        self,
        open_cache: OpenCache | Sequence[OpenCache],
        *,
        vocabulary: int,
        settings: WidthsSettings | None = None,
    ) -> None:
        """Set up one or several draft models; see `DraftModelDrafter`."""
        s = settings or WidthsSettings()
        widths, maximum = _widths(s.widths), s.max_nodes
        first, *self._others = [open_cache] if callable(open_cache) else open_cache
        acceptance = SiblingAcceptance()

        def tree() -> Widths:
            return Widths(widths, acceptance, replacement=True, max_nodes=maximum)

        self._tree: Callable[[], Widths] = tree
        self._setup(first, vocabulary, tree, maximum)

    def open(self, start: SessionRequest) -> Session:
        if not self._others:
            return super().open(start)
        sessions = list[LevelSession]()
        for place, open_cache in enumerate([self._open_cache, *self._others]):
            own = replace(
                start, seed=np.random.SeedSequence(start.seed.entropy, spawn_key=(*start.seed.spawn_key, place))
            )
            sessions.append(UntaughtSession(DraftText.open(open_cache, start, self._vocabulary), own, self._tree()))
        return MergedSession(sessions, self._tree())


class MCSDDrafter(DraftModelDrafter):
    """Drafter of trees of fixed widths, with siblings drawn without replacement: `mcsd`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: WidthsSettings | None = None) -> None:
        s, acceptance = settings or WidthsSettings(), SiblingAcceptance()
        widths, maximum = _widths(s.widths), s.max_nodes
        self._setup(
            open_cache, vocabulary, lambda: Widths(widths, acceptance, replacement=False, max_nodes=maximum), maximum
        )


class SpecTrDrafter(DraftModelDrafter):
    """Drafter of several independent sequences: `spectr`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: SequencesSettings | None = None) -> None:
        s, acceptance = settings or SequencesSettings(), LevelAcceptance()
        self._setup(
            open_cache,
            vocabulary,
            lambda: Sequences(s.sequences, acceptance, max_nodes=s.max_nodes),
            s.max_nodes,
        )


class OptTreeDrafter(DraftModelDrafter):
    """Drafter of trees of the most probable paths: `opt-tree`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: BestFirstSettings | None = None) -> None:
        s, gains = settings or BestFirstSettings(), LevelGains()
        self._setup(
            open_cache,
            vocabulary,
            lambda: BestFirst(
                gains, depth=s.depth, top_k=s.top_k, min_probability=s.min_probability, max_nodes=s.max_nodes
            ),
            s.max_nodes,
        )


class SequoiaDrafter(DraftModelDrafter):
    """Drafter of the tree with the most expected accepted tokens: `sequoia`.

    Attributes:
        trees: the best trees so far.
    """

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: BestTreeSettings | None = None) -> None:
        s = settings or BestTreeSettings()
        self.trees = AdaptiveTrees(SiblingAcceptance(), depth=s.depth, siblings=s.siblings, max_nodes=s.max_nodes)
        self._setup(open_cache, vocabulary, lambda: BestTree(self.trees), s.max_nodes)


def _widths(text: str) -> list[int]:
    """Return the numbers in a setting such as 4,2,2.

    Raises:
        UsageError: the setting is not a list of numbers.
    """
    try:
        return [int(each) for each in str(text).split(",")]
    except ValueError as error:
        raise UsageError(f"widths must be numbers, as in 4,2,2, not {text!r}.") from error
