"""How a drafter's logits are warped, so that q is warped like the target's p, and a token drawn from q."""

from __future__ import annotations

import torch
from torch import Tensor

from speculant.core.sampler import Sampling


def warped(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the distributions Float32[R, V] of logits [R, V] after temperature, top-k, top-p and min-p.

    In this order, as transformers applies them; the temperature must be above 0.
    """
    scores = logits.float() / sampling.temperature
    if sampling.top_k is not None:
        least = scores.topk(min(sampling.top_k, scores.shape[-1])).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p is not None:
        ordered, places = scores.sort()
        beyond = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        beyond[..., -1] = False
        scores = scores.masked_fill(beyond.scatter(-1, places, beyond), -torch.inf)
    if sampling.min_p is not None:
        p = scores.softmax(-1)
        scores = scores.masked_fill(p < sampling.min_p * p.amax(-1, keepdim=True), -torch.inf)
    return scores.softmax(-1)


def drawn_token(q: Tensor, generator: torch.Generator | None) -> int:
    """Return a token drawn from q [V]; without a generator, as where decoding is greedy, the most probable one."""
    return int(q.argmax() if generator is None else torch.multinomial(q.cpu(), 1, generator=generator))
