"""MLP speculator (Wertheimer et al. 2024, arXiv 2404.19124): a small recurrent network over drafted tokens.

Its state starts as f, the target's newest state after the final norm. Step i reads the token before the one it
predicts, the root first: s = GELU(LN_i(P_i s + (e / w) E_i(x))), logits H_i s, with w = 0.5^(0.5 / n) and
e = sqrt((1 - w^2) d / 2), so that after n steps half of the state's magnitude is f's. It has its own embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from speculant.core.engine import LAST_LAYER
from speculant.drafters.heads.head import HeadState, TargetParts
from speculant.drafters.heads.levels import LevelHead, LevelState, newest_states


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPShape:
    """The sizes of an MLP speculator.

    Attributes:
        hidden: D, hidden size of the target.
        inner: d, size of its state.
        vocabulary: V.
        steps: n, number of tokens it predicts.
        tied: whether all steps share weights, except the first projection.
        scaled: whether f is normalised first.
    """

    hidden: int
    inner: int
    vocabulary: int
    steps: int = 3
    tied: bool = False
    scaled: bool = False


class BiasedRMSNorm(nn.Module):
    """Scales [..., d] to a mean square of 1, then by weights, and adds a bias."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(torch.mul(self.weight, unit_scaled(x)), self.bias)


class MLPHead(nn.Module, LevelHead):
    """The weights, named as in the authors' checkpoints."""

    taps = (LAST_LAYER,)
    depth: int
    ids = None

    def __init__(self, shape: MLPShape) -> None:
        """Build a network with the authors' random weights."""
        super().__init__()
        self.shape, self.depth = shape, shape.steps
        steps, inner = range(shape.steps), shape.inner
        self.emb = _stages([nn.Embedding(shape.vocabulary, inner) for _ in steps], tied=shape.tied)
        projections = [nn.Linear(inner if step else shape.hidden, inner, bias=False) for step in steps]
        self.proj = nn.ModuleList([projections[0], *_stages(projections[1:], tied=shape.tied)])
        self.head = _stages([nn.Linear(inner, shape.vocabulary, bias=False) for _ in steps], tied=shape.tied)
        self.ln = _stages([BiasedRMSNorm(inner) for _ in steps], tied=shape.tied)
        for name, parameter in self.named_parameters():
            if not name.startswith("ln."):
                nn.init.normal_(parameter, 0, inner**-0.5)

    def open(self, first: int, target: TargetParts) -> HeadState:
        return MLPState(self, target, first)

    def scale_features(self, features: Tensor) -> Tensor:
        """Return the first state [..., D], given the target's states [..., D] after the final norm."""
        x = features.to(next(self.parameters()).dtype)
        return unit_scaled(x) / math.sqrt(2) if self.shape.scaled else x

    def step(self, states: Tensor, tokens: Tensor, index: int, target: TargetParts) -> Tensor:
        """Return the states [..., d] after one step, given the previous states and tokens Int64[...]."""
        weight = 0.5 ** (0.5 / self.shape.steps)
        factor = math.sqrt((1 - weight**2) * self.shape.inner / 2) / weight
        x = torch.add(target.linear(self.proj[index], states), self.emb[index](tokens), alpha=factor)
        return nn.functional.gelu(self.ln[index](x))

    def project(self, states: Tensor, index: int, target: TargetParts) -> Tensor:
        """Return the logits [..., V] for states [..., d] after a step."""
        return target.linear(self.head[index], states)


class MLPState(LevelState):
    """State of one text."""

    def __init__(self, head: MLPHead, target: TargetParts, first: int) -> None:
        super().__init__(first)
        self._head, self._target = head, target

    def read_contexts(
        self, states: Sequence[LevelState], hidden: Sequence[Tensor], following: Sequence[Tensor]
    ) -> Tensor:
        roots = torch.stack([own[-1] for own in following])
        features = self._head.scale_features(self._target.norm(newest_states(hidden)))
        return self._head.step(features, roots, 0, self._target)

    def follow_tokens(self, contexts: Tensor, tokens: Tensor, depth: int) -> Tensor:
        return self._head.step(contexts, tokens, depth, self._target)

    def project_contexts(self, contexts: Tensor, depth: int) -> Tensor:
        return self._head.project(contexts, depth, self._target)


def _stages(modules: Sequence[nn.Module], *, tied: bool) -> nn.ModuleList:
    """Return the modules of all steps; if they are tied, the first one for each step."""
    return nn.ModuleList([modules[0]] * len(modules) if tied and modules else modules)


def unit_scaled(x: Tensor) -> Tensor:
    """Return [..., d] scaled to a mean square of 1."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
