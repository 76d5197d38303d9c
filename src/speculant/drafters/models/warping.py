"""How a drafter's logits are warped, so that q is warped like the target's p, and a token drawn from q."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from speculant.core.sampler import Sampling

_LOG = logging.getLogger(__name__)


class Warping:
    """Turns the logits of a drafter into q, for one request."""

    def __init__(self, sampling: Sampling) -> None:
        """Take how the target samples."""
        self._sampling, self._logged = sampling, False

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the distributions Float32[n, V] of logits [n, V], warped as the target's are unless it is greedy.

        Where logits are no numbers, as those of damaged weights and of states beyond a dtype's range are, q is uniform:
        such drafts cost speed, and a memory beside the drafter goes on.
        """
        q = warped(logits, self._sampling) if self._sampling.temperature else logits.float().softmax(-1)
        unknown = q[:, :1].isnan()  # where one is, all of the row are
        if bool(unknown.any()):
            if not self._logged:
                self._logged = True
                _LOG.warning("the drafter returned logits that are no numbers; its drafts cost time and gain nothing.")
            q = torch.where(unknown, 1 / q.shape[-1], q)
        return q


def warped(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the distributions Float32[R, V] of logits [R, V] after temperature, top-k, top-p and min-p.

    In this order, as transformers applies them; the temperature must be above 0.
    """
    scores = logits.float() / sampling.temperature
    if sampling.top_k is not None:
        min_probability = scores.topk(min(sampling.top_k, scores.shape[-1])).values[..., -1:]
        scores = scores.masked_fill(scores < min_probability, -torch.inf)
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
    """Return a token drawn from q [V]; without a generator, as where decoding is greedy, the most probable one."""
    return int(q.argmax() if generator is None else torch.multinomial(q.cpu(), 1, generator=generator))
