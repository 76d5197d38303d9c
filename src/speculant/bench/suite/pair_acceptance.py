"""Measures how often a target accepts a draft model's tokens, on the target's own greedy text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from speculant.api.draft_caches import DraftCaches
from speculant.api.speculator import Speculator
from speculant.core.engine import TargetCache
from speculant.core.tree import Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class PairAcceptance:
    """Acceptance of a draft model's tokens.

    Attributes:
        tokens: number of positions compared.
        sampled: mean of sum_x min(p(x), q(x)) at temperature 1, with which speculative sampling accepts a token drawn
            from q (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.5).
        greedy: share of positions at which both have the same most probable token.
    """

    tokens: int
    sampled: float
    greedy: float


def measure_pair(plain: Speculator, drafts: DraftCaches, prompts: Sequence[Int32], *, tokens: int) -> PairAcceptance:
    """Return the acceptance over greedy continuations.

    Args:
        plain: a speculator with method `none` on the target.
        drafts: opens caches of the draft model that take the target's tokens.
        prompts: Int32[T] each, at least one.
        tokens: maximum tokens of each continuation.
    """
    overlap, agreed = list[Tensor](), list[Tensor]()
    for prompt in prompts:
        text = np.array(plain.generate(prompt.tolist(), max_new_tokens=tokens, temperature=0).ids, np.int32)
        with torch.no_grad():
            target = plain.engine.open(torch.from_numpy(prompt).long()[None].to(plain.engine.device))
            ours = _distributions(target, text)
            theirs = _distributions(drafts(prompt), text)
        theirs = pad(theirs[:, : ours.shape[1]], (0, max(0, ours.shape[1] - theirs.shape[1]))).to(ours.device)
        overlap.append(torch.minimum(ours, theirs).sum(-1))
        agreed.append(ours.argmax(-1) == theirs.argmax(-1))
    every = torch.cat(overlap)
    return PairAcceptance(
        tokens=len(every), sampled=float(every.mean()), greedy=float(torch.cat(agreed).float().mean())
    )


def _distributions(cache: TargetCache, text: Int32) -> Tensor:
    """Return the distributions [n, V] before each of n tokens that follow the prompt; frees the cache."""
    read = cache.prefill()
    assert read is not None
    logits = [read.logits]
    if len(text) > 1:
        logits.append(cache.forward(text[:-1], np.arange(-1, len(text) - 2, dtype=np.int32)).logits)
    cache.release()
    return torch.cat(logits).float().softmax(-1)
