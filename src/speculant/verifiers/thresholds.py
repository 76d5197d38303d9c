"""Lossy rules that accept a token if its target probability passes a threshold, however it was drafted.

A node is accepted if it and all its ancestors pass; the path ends at the deepest accepted node, or among equally deep
ones at the one that the drafter ranks first. The target's own token follows: its argmax if decoding is greedy, else
drawn from p. The output neither equals plain decoding nor is distributed as p, so these rules are used only on request
(`lossy=True`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from speculant.core.errors import UsageError
from speculant.verifiers.forest import Forest
from speculant.verifiers.rule import Choice, Decision, DescentVerifier, RuleVerifier
from speculant.verifiers.speculative_sampling import recursive_rejection


class ThresholdVerifier(RuleVerifier):
    """Accepts tokens whose own probability passes a test."""

    exactness: Literal["tokens", "distribution", "lossy"] = "lossy"

    @abstractmethod
    def passes(self, forest: Forest, p: Tensor, depths: Tensor) -> Tensor:
        """Return Bool[B, N], whether each node's token passes, given the distribution p [B, N, V] after its parent."""

    def rule(self, forest: Forest, p: Tensor, uniforms: Tensor) -> Decision:
        everyone, size = torch.arange(len(p), device=p.device), forest.tokens.shape[1]
        above = p.gather(1, forest.parents[..., None].expand(-1, -1, p.shape[-1]))
        depths = p.new_zeros(len(p), size + 1, dtype=torch.int64)
        for node in range(size):
            depths[:, node + 1] = depths[everyone, forest.parents[:, node]] + 1
        passing = self.passes(forest, above, depths[:, 1:]) & forest.exists
        accepted = torch.ones_like(depths, dtype=torch.bool)
        for node in range(size):
            accepted[:, node + 1] = passing[:, node] & accepted[everyone, forest.parents[:, node]]
        rows = torch.where(accepted, depths, -1).argmax(1)
        return Decision(rows, p[everyone, rows], passing.to(p))


@dataclass(kw_only=True, eq=False)
class TypicalAcceptance(ThresholdVerifier):
    """Medusa (Cai et al., ICML 2024, arXiv 2401.10774), section 2.3: p(x) > min(epsilon, delta exp(-H(p))).

    The authors' runs use epsilon = 0.09 and delta = 0.3; the defaults of their function are swapped.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        _check_share("epsilon", self.epsilon)
        _check_share("delta", self.delta)

    def passes(self, forest: Forest, p: Tensor, depths: Tensor) -> Tensor:
        entropy = torch.special.entr(p).sum(-1)
        return _select_own(forest, p) > torch.minimum(
            self.delta * (-entropy).exp(), torch.full_like(entropy, self.epsilon)
        )


@dataclass(kw_only=True, eq=False)
class TopBeta(ThresholdVerifier):
    """SpecDec (Xia et al., EMNLP Findings 2023, arXiv 2203.16487): among the top `beta`, and log p near the maximum.

    Attributes:
        beta: maximum rank.
        gap: maximum difference in nats from the most probable token.
    """

    beta: int = 3
    gap: float = 1.0

    def __post_init__(self) -> None:
        if self.beta < 1 or self.gap < 0:
            raise UsageError(
                f"top-beta takes a beta of at least 1 and a gap of at least 0, not {self.beta} and {self.gap}."
            )

    def passes(self, forest: Forest, p: Tensor, depths: Tensor) -> Tensor:
        own = _select_own(forest, p)
        near = own >= math.exp(-self.gap) * p.amax(-1)
        return near & (_rank(p, own) <= self.beta)


@dataclass(kw_only=True, eq=False)
class Blockwise(ThresholdVerifier):
    """Blockwise Parallel Decoding (Stern et al., NeurIPS 2018, arXiv 1811.03115), section 5.

    A token passes if it is among the top `k` or, for ordered vocabularies such as intensities, at most `distance` from
    the most probable one. The first `minimum` tokens of a block always pass.
    """

    k: int = 1
    distance: int = 0
    minimum: int = 0

    def __post_init__(self) -> None:
        if self.k < 1 or self.distance < 0 or self.minimum < 0:
            raise UsageError("blockwise takes a k of at least 1, and a distance and a minimum of at least 0.")

    def passes(self, forest: Forest, p: Tensor, depths: Tensor) -> Tensor:
        near = (forest.tokens - p.argmax(-1)).abs() <= self.distance
        return near | (_rank(p, _select_own(forest, p)) <= self.k) | (depths <= self.minimum)


@dataclass(kw_only=True, eq=False)
class Rollback(ThresholdVerifier):
    """BiLD (Kim et al., NeurIPS 2023, arXiv 2302.07863): roll back to the first token with -log p above a threshold.

    The paper and the survey describe a distance between distributions; the authors' code tests the cross-entropy of the
    drafted token, as here. The first rejected token is replaced by the target's.

    Attributes:
        threshold: in nats.
    """

    threshold: float = 5.0

    def __post_init__(self) -> None:
        if not self.threshold > 0:
            raise UsageError(f"the threshold of a rollback must be above 0 nats, not {self.threshold}.")

    def passes(self, forest: Forest, p: Tensor, depths: Tensor) -> Tensor:
        return _select_own(forest, p) >= math.exp(-self.threshold)


@dataclass(kw_only=True, eq=False)
class Nucleus(DescentVerifier):
    """Medusa's other rule: a token is drawn from the nucleus (top-p) of the target and followed in the draft."""

    exactness = "lossy"
    top_p: float = 0.8

    def __post_init__(self) -> None:
        _check_share("top_p", self.top_p)

    def choose(self, forest: Forest, rows: Tensor, p: Tensor, uniforms: Tensor) -> Choice:
        ordered, places = p.sort(-1, descending=True)
        kept = ordered.cumsum(-1) - ordered < self.top_p
        nucleus = torch.where(kept, ordered, 0.0)
        p = torch.zeros_like(p).scatter(1, places, nucleus / nucleus.sum(-1, keepdim=True))
        followed = replace(forest, sampled=torch.zeros_like(forest.sampled))
        return recursive_rejection(followed, rows, p, uniforms)


@dataclass(kw_only=True, eq=False)
class Lenience(DescentVerifier):
    """Speculative sampling with a scaled-down q, which accepts more (Leviathan et al. 2023, appendix A.5).

    Attributes:
        lenience: factor of q, above 0 and at most 1; with 1 the rule is lossless.
    """

    exactness = "lossy"
    lenience: float = 0.5

    def __post_init__(self) -> None:
        _check_share("lenience", self.lenience)

    def choose(self, forest: Forest, rows: Tensor, p: Tensor, uniforms: Tensor) -> Choice:
        return recursive_rejection(forest, rows, p, uniforms, lenience=self.lenience)


def _select_own(forest: Forest, p: Tensor) -> Tensor:
    """Return the probability of each node's token [B, N], given p [B, N, V] after its parent."""
    return p.gather(-1, forest.tokens[..., None])[..., 0]


def _rank(p: Tensor, own: Tensor) -> Tensor:
    return (p > own[..., None]).sum(-1) + 1


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise UsageError(f"{name} must be above 0 and at most 1, not {value}.")
