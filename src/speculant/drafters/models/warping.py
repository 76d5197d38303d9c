"""Warping of a drafter's logits into q, in the same way as the target's p, and drawing a token from q."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from speculant.core.sampler import Sampling
from speculant.drafters.top_tokens import best_token

logger = logging.getLogger(__name__)


class Warping:
    """Converts the logits of a drafter into q, for one request."""

    def __init__(self, sampling: Sampling) -> None:
        """Set the target's sampling settings."""
        self._sampling, self._logged = sampling, False

    def __call__(self, logits: Tensor) -> Tensor:
        """Return distributions Float32[n, V] for logits [n, V], warped like the target's unless it is greedy.

        If logits are NaN, because of damaged weights or states beyond a dtype's range, q is uniform: such drafts cost
        speed, but a memory that drafts along keeps working.
        """
        q = warp_logits(logits, self._sampling) if self._sampling.temperature else logits.float().softmax(-1)
        unknown = q[:, :1].isnan()  # if one value is NaN, the whole row is
        if bool(unknown.any()):
            if not self._logged:
                self._logged = True
                logger.warning("the drafter returned NaN logits; its drafts cost time and gain nothing.")
            q = torch.where(unknown, 1 / q.shape[-1], q)
        return q


def warp_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return distributions Float32[R, V] for logits [R, V] after temperature, top-k, top-p and min-p.

    They are applied in this order, as in transformers; the temperature must be above 0.
    """
    scores = logits.float() / sampling.temperature
    if sampling.top_k is not None:
        lowest = scores.topk(min(sampling.top_k, scores.shape[-1])).values[..., -1:]
        scores = scores.masked_fill(scores < lowest, -torch.inf)
    if sampling.top_p is not None:
        ordered, places = scores.sort()
        beyond = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        beyond[..., -1] = False
        scores = scores.masked_fill(beyond.scatter(-1, places, beyond), -torch.inf)
    if sampling.min_p is not None:
        p = scores.softmax(-1)
        scores = scores.masked_fill(p < sampling.min_p * p.amax(-1, keepdim=True), -torch.inf)
    return scores.softmax(-1)


def draw_token(q: Tensor, generator: torch.Generator | None) -> int:
    """Return a token drawn from q [V]; without a generator, as in greedy decoding, the most probable one."""
    return int(best_token(q[None]) if generator is None else torch.multinomial(q.cpu(), 1, generator=generator))
