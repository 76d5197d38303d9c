"""LLMCad: a token tree that ends by confidence, and drafting that continues while the target verifies: `llmcad`.

Xu et al.: "LLMCad: Fast and Scalable On-device Large Language Model Inference", 2023, arXiv 2309.04255. Three parts:

- The tree: the most probable paths, until the most probable one falls below a threshold.
- The self-adjusting threshold: it is halved after a round in which the whole most probable path was accepted, since the
  draft could have been longer, and doubled after any other.
- The pipeline: while the target's pass runs, the draft model continues the most probable path in a thread. If the text
  takes that path, the continuation is the next draft, which then takes no time.

Drafted tokens are deterministic, so the text is the target's regardless of when they were drafted. The pipeline needs
cores of its own, or it slows the target down; so by default it runs only if there are more cores than the target's
passes use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from speculant.core.drafter import Budget, Session, SessionRequest, Verified
from speculant.core.engine import MAX_NODES
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.models.ahead import DrawnAhead, PassTimes
from speculant.drafters.models.draft_model import DraftModelDrafter
from speculant.drafters.models.draft_text import DraftText, OpenCache
from speculant.drafters.models.level_session import LevelSession
from speculant.drafters.models.shapes import MAX_PASSES, BestFirst, Shape
from speculant.drafters.models.tree_acceptance import DEPTHS, LevelGains

LOWEST, HIGHEST = 1e-3, 0.5  # range of the threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceSettings:
    """Settings of `llmcad`.

    Attributes:
        threshold: initial joint probability of the most probable path below which drafting ends.
        adaptive: whether the threshold adapts to what is accepted.
        top_k: nodes expanded per level, and candidates per expanded node.
        ahead: tokens drafted during a pass of the target, 0 for none; None for as many as there is time for, if there
            are idle cores.
        max_nodes: maximum nodes per draft; drafts are cut to what the engine has room for.
    """

    threshold: float = 0.01
    adaptive: bool = True
    top_k: int = 4
    ahead: int | None = None
    max_nodes: int = MAX_NODES


class LLMCadDrafter(DraftModelDrafter):
    """Drafter of the method `llmcad`."""

    def __init__(self, open_cache: OpenCache, *, vocabulary: int, settings: ConfidenceSettings | None = None) -> None:
        """Set up the draft model, see `DraftModelDrafter`.

        Raises:
            UsageError: a setting is out of range.
        """
        s, gains = settings or ConfidenceSettings(), LevelGains()
        if s.ahead is not None and not 0 <= s.ahead <= MAX_PASSES:
            raise UsageError(f"ahead must be 0 to {MAX_PASSES}, not {s.ahead}.")
        self._setup(open_cache, vocabulary, lambda: ConfidentTree(gains, s), s.max_nodes)
        self._ahead = s.ahead
        if s.ahead is None and count_cores() <= torch.get_num_threads():
            self._ahead = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="speculant-draft")  # runs all passes of the draft model
        self._times = PassTimes()

    def open(self, start: SessionRequest) -> Session:
        if self._ahead == 0:
            return super().open(start)
        text = self._worker.submit(self.open_text, start).result()
        return PipelineSession(text, start, self._shape(), self._worker, self._ahead, self._times)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        """Return a draft for each session before anything is drafted ahead."""
        if self._ahead == 0:
            return super().propose(sessions, budgets)
        drafts, pipelines = list[DraftTree](), [each for each in sessions if isinstance(each, PipelineSession)]
        for session, budget in zip(pipelines, budgets, strict=True):
            drafts.append(session.draft(budget))
        for session, budget, draft in zip(pipelines, budgets, drafts, strict=True):
            session.go_ahead(draft, budget)
        return drafts


class ConfidentTree(BestFirst):
    """The most probable paths down to a threshold that adapts to what is accepted."""

    def __init__(self, gains: LevelGains, settings: ConfidenceSettings) -> None:
        s = settings
        super().__init__(gains, depth=DEPTHS, top_k=s.top_k, min_probability=s.threshold, max_nodes=s.max_nodes)
        self._adaptive = s.adaptive

    @property
    def threshold(self) -> float:
        """Current joint probability below which drafting ends."""
        return self._min_probability

    def learn(self, draft: DraftTree, path: Sequence[int]) -> None:
        super().learn(draft, path)
        if self._adaptive:
            whole = list(path[: len(draft.best_chain())]) == draft.best_chain().tolist()
            self._min_probability = min(HIGHEST, max(LOWEST, self._min_probability * (0.5 if whole else 2.0)))


class PipelineSession(LevelSession):
    """Session that keeps drafting while the target verifies. All passes of the draft model run in the worker."""

    def __init__(
        self,
        text: DraftText,
        start: SessionRequest,
        shape: Shape,
        worker: Executor,
        ahead: int | None,
        times: PassTimes,
    ) -> None:
        super().__init__(text, start, shape)
        self._draft_text, self._worker, self._most, self._times = text, worker, ahead, times
        self._ready: list[tuple[int, float]] = []  # tokens below the root, with the joint probability of each
        self._chain: list[tuple[int, float]] = []  # the most probable path of the draft
        self._ahead: DrawnAhead | None = None

    def propose(self, budget: Budget) -> DraftTree:
        """Return a draft and start drafting ahead. Repeated calls before `observe` return the same draft."""
        draft = self.draft(budget)
        self.go_ahead(draft, budget)
        return draft

    def draft(self, budget: Budget) -> DraftTree:
        """Return what was drafted during the last pass, or otherwise a new tree."""
        self._stop()
        if depth := max(0, min(budget.nodes, budget.depth, len(self._ready))):
            tokens, weights = zip(*self._ready[:depth], strict=True)
            parents = np.arange(-1, depth - 1, dtype=np.int32)
            return DraftTree.trusted(np.array(tokens, np.int32), parents, np.array(weights, np.float32), levels=0)
        return self._worker.submit(super().propose, budget).result()

    def go_ahead(self, draft: DraftTree, budget: Budget) -> None:
        """Start drafting what may follow the most probable path of a draft."""
        best = draft.best_chain()
        self._chain = list(zip(draft.tokens[best].tolist(), draft.weights[best].tolist(), strict=True))
        most = min(self._most or budget.nodes + 1, MAX_PASSES, self._draft_text.depth - len(self._chain) - 1)
        if self._chain and most > 1:  # the first token only decides whether the others can be used
            tokens = [token for token, _ in self._chain]
            self._ahead = DrawnAhead(self._draft_text, tokens, most, self._worker, None, self._times)

    def observe(self, verified: Verified) -> None:
        """Use what was drafted ahead if the text took that path."""
        drawn = [] if self._ahead is None else self._ahead.end(complete=self._most is not None)
        chain, self._chain, self._ahead = [*self._chain], [], None
        for token, distribution in drawn:
            chain.append((token, min(1.0, float(distribution[token])) * chain[-1][1]))
        tokens = verified.tokens.tolist()
        followed = [token for token, _ in chain[: len(tokens)]] == tokens
        rest = chain[len(tokens) :] if followed else []
        reached = max(chain[len(tokens) - 1][1], float(np.finfo(np.float32).tiny)) if rest else 1.0
        self._ready = [(token, min(1.0, joint / reached)) for token, joint in rest]
        self._worker.submit(super().observe, verified).result()

    def close(self) -> None:
        self._stop()
        self._worker.submit(super().close).result()

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.stop()
        self._ahead = None


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
