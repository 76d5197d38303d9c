"""How far a lossy acceptance rule leaves the target's distribution, computed while it decodes.

KL(r || p), where r is the distribution of the next token under the rule, given the text and q, and p the target's. It
is computed exactly at every row where a draft was tested. A chosen token that passes has probability 1 under r.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from speculant.verifiers.forest import Forest, residual
from speculant.verifiers.rule import Choice, Decision
from speculant.verifiers.thresholds import Lenience, Nucleus, ThresholdVerifier

CANDIDATES = 256  # most probable tokens that are tested for a drawn draft; all rules accept the more probable tokens


class Meter:
    """Adds up KL(r || p) at the rows where a rule tests drafts, and the CPU time that this takes."""

    def __init__(self, verifier: Any) -> None:
        """Measure a verifier from now on, one sequence at a time."""
        self.nats, self.seconds = 0.0, 0.0
        if isinstance(verifier, ThresholdVerifier):
            verifier.rule = self._timed(verifier.rule, self._thresholds(verifier))  # type: ignore[method-assign]
        elif isinstance(verifier, Lenience | Nucleus):
            verifier.choose = self._timed(verifier.choose, _siblings(verifier))  # type: ignore[method-assign]

    def _timed(self, run: Callable[..., Any], divergence: Callable[..., float]) -> Callable[..., Any]:
        def measured(*given: Tensor) -> Any:
            outcome = run(*given)
            began = time.process_time()
            self.nats += divergence(outcome, *given)
            self.seconds += time.process_time() - began
            return outcome

        return measured

    def _thresholds(self, verifier: ThresholdVerifier) -> Callable[..., float]:
        def divergence(outcome: Decision, forest: Forest, p: Tensor, _uniforms: Tensor) -> float:
            path, row = [int(outcome.rows)], int(outcome.rows)
            while row:
                row = int(forest.parents[0, row - 1])
                path.append(row)
            if not bool(forest.sampled.any()):
                own = [(int(forest.parents[0, node - 1]), int(forest.tokens[0, node - 1])) for node in path[:-1]]
                return -sum(float(p[0, above, token].clamp(min=1e-30).log()) for above, token in own)
            tested = [each for each in path if int(forest.children[0, each, 0]) >= 0]
            return sum(_drawn(verifier, forest, p[0, each], forest.q[0, each], each) for each in tested)

        return divergence


def _drawn(verifier: ThresholdVerifier, forest: Forest, p: Tensor, q: Tensor, row: int) -> float:
    """Return KL(r || p) after one row, where a token drawn from q is kept if it passes, else one is drawn from p."""
    best = p.topk(min(CANDIDATES, len(p))).indices
    every = replace(forest, tokens=best[None])
    depths = torch.full((1, len(best)), row + 1)
    passing = best[verifier.passes(every, p.expand(1, len(best), -1), depths)[0]]
    kept = torch.zeros_like(q).scatter(0, passing, q[passing])
    return divergence_of(kept + (1 - kept.sum()) * p, p)


def _siblings(verifier: Lenience | Nucleus) -> Callable[..., float]:
    def divergence(_outcome: Choice, forest: Forest, rows: Tensor, p: Tensor, _uniforms: Tensor) -> float:
        if isinstance(verifier, Nucleus):
            ordered = p[0].sort(descending=True).values
            return -float(ordered[ordered.cumsum(0) - ordered < verifier.top_p].sum().log())
        node = forest.children[0, rows][:, :1]
        if not node.numel() or int(node) < 0:
            return 0.0
        q = verifier.lenience * forest.find_proposals(node[:, 0], forest.q[0, rows])
        kept = torch.minimum(q, p) / verifier.lenience
        return divergence_of((kept + (1 - kept.sum()) * residual(p, q))[0], p[0])

    return divergence


def divergence_of(r: Tensor, p: Tensor) -> float:
    """Return KL(r || p) in nats of two distributions [V]."""
    r, p = r.double().clamp(min=0), p.double()
    return float(torch.where(r > 0, r * (r.clamp(min=1e-300).log() - p.clamp(min=1e-300).log()), 0.0).sum())
