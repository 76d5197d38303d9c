"""Speculative contrastive decoding: the output follows the contrast of target and draft model, not the target's p.

Yuan et al.: "Speculative Contrastive Decoding", ACL 2024, arXiv 2311.08981, with the distribution of Li et al. 2023
(arXiv 2210.15097) in the form of O'Brien and Lewis 2023 (arXiv 2309.09117): among the tokens with p >= alpha max p,

    p'(x) proportional to p(x)^(1 + beta) / q(x)^beta,

where q is the distribution of the draft model, the amateur, at the same temperature but not truncated by top-k or
top-p. Drafts are drawn from q and tested against p' by speculative sampling, so the output has exactly the distribution
p', whatever the draft. Every pass needs q after its root, including the prompt's and those without a draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from speculant.core.engine import Pass
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sampler import Sampler
from speculant.core.tree import DraftTree
from speculant.verifiers.forest import Forest
from speculant.verifiers.rule import Decision, RuleVerifier, Work, descend
from speculant.verifiers.speculative_sampling import recursive_rejection


@dataclass(kw_only=True, eq=False)
class ContrastiveDecoding(RuleVerifier):
    """Exact in distribution for p', which differs from the target's p."""

    exactness = "lossy"
    scored = True
    alpha: float = 0.1
    beta: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.alpha <= 1 and self.beta >= 0):
            raise UsageError(f"alpha must be above 0 and at most 1, beta at least 0; not {self.alpha} and {self.beta}.")

    def prepare(self, tree: DraftTree, result: Pass, sampler: Sampler) -> Any:
        """Return the work on the device, with p' in place of p.

        Raises:
            UnsupportedError: q after some row is missing, as when a text is decoded without drafts.
        """
        if tree.proposal is None:
            raise UnsupportedError(
                "contrastive decoding compares both models at every token, but this text is decoded without the "
                "draft model. `speculant check` says why; leave out the method 'contrastive' to decode plainly."
            )
        work = super().prepare(tree, result, sampler)
        assert isinstance(work, Work)
        p = contrast(work.p, self._q(tree, work.p), self.alpha, self.beta)
        if work.greedy:
            p = torch.zeros_like(p).scatter_(1, p.argmax(1, keepdim=True), 1.0)
        return Work(tree, p, work.uniforms, work.greedy)

    def _q(self, tree: DraftTree, p: Tensor) -> Tensor:
        assert tree.proposal is not None
        q = torch.as_tensor(tree.proposal.q)
        if len(q) != len(p):
            raise UnsupportedError("contrastive decoding needs q after every node; use the method 'contrastive'.")
        return q.to(p)

    def rule(self, forest: Forest, p: Tensor, uniforms: Tensor) -> Decision:
        return descend(recursive_rejection, forest, p, uniforms)


def contrast(p: Tensor, q: Tensor, alpha: float, beta: float) -> Tensor:
    """Return the contrastive distribution p' [R, V] of p and q [R, V]."""
    floor = torch.finfo(p.dtype).tiny
    scores = (1 + beta) * p.clamp(min=floor).log() - beta * q.clamp(min=floor).log()
    plausible = (p >= alpha * p.amax(-1, keepdim=True)) & (p > 0)
    return scores.masked_fill(~plausible, -torch.inf).softmax(-1)
