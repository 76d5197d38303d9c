"""Divergences between a head's distribution q and the target's p, each a function of logits.

Per token (for heads and draft models):

    ce      -log q(x) of the token x of the text (sequence-level distillation where the target wrote the text:
            Kim and Rush 2016, arXiv 1606.07947)
    kl      sum p log(p / q), forward
    rkl     sum q log(q / p), reverse
    jsd     b KL(p | m) + (1 - b) KL(q | m), m = b p + (1 - b) q, with b = .5; jsd(0.1) sets b (GKD: Agarwal et al.
            2024, arXiv 2306.13649, eq. 1)
    tvd     half the sum of |p - q|: the probability that speculative sampling rejects (DistillSpec: Zhou et al. 2024,
            arXiv 2310.08461, section 3)
    top     -sum p log q over the target's 10 most probable tokens; top(5) over 5 (HASS: Zhang et al. 2025, arXiv
            2408.15766, section 3.1)

`parse_loss` parses sums of these, such as "kl + 0.1 ce". Everything is computed in float32, a few rows at a time: for a
loss over [A, V'] only one tensor of that size is kept, its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from speculant.training.loss_terms import Term, parse_terms

Divergence = Callable[[Tensor, Tensor, Tensor], Tensor]
CHUNK = 1 << 23  # logits processed at once


def cross_entropy(logits: Tensor, _target: Tensor, tokens: Tensor) -> Tensor:
    """Return -log q of the text's tokens, [A]; 0 where the head's vocabulary lacks them (-1)."""
    found = logits.log_softmax(-1).gather(1, tokens.clamp(min=0)[:, None])[:, 0]
    return torch.where(tokens >= 0, -found, 0.0)


def forward_kl(logits: Tensor, target: Tensor, _tokens: Tensor) -> Tensor:
    """Return KL(p | q), [A]."""
    p = target.log_softmax(-1)
    return (p.exp() * (_finite(p) - logits.log_softmax(-1))).sum(-1)


def reverse_kl(logits: Tensor, target: Tensor, _tokens: Tensor) -> Tensor:
    """Return KL(q | p), [A]."""
    q = logits.log_softmax(-1)
    return (q.exp() * (q - _finite(target.log_softmax(-1)))).sum(-1)


def jensen_shannon(logits: Tensor, target: Tensor, _tokens: Tensor, *, share: float = 0.5) -> Tensor:
    """Return the generalised Jensen-Shannon divergence, [A]; `share` is p's in the mixture."""
    p, q = target.log_softmax(-1), logits.log_softmax(-1)
    mixture = (share * p.exp() + (1 - share) * q.exp()).clamp(min=torch.finfo(torch.float32).tiny).log()
    of_p = (p.exp() * (_finite(p) - mixture)).sum(-1)
    return share * of_p + (1 - share) * (q.exp() * (q - mixture)).sum(-1)


def total_variation(logits: Tensor, target: Tensor, _tokens: Tensor) -> Tensor:
    """Return half the sum of |p - q|, [A]."""
    return (target.softmax(-1) - logits.softmax(-1)).abs().sum(-1) / 2


def top_tokens(logits: Tensor, target: Tensor, _tokens: Tensor, *, count: int = 10) -> Tensor:
    """Return -sum p log q over the target's most probable tokens, [A]."""
    p, chosen = target.softmax(-1).topk(min(count, target.shape[-1]), dim=-1)
    return -(p * logits.log_softmax(-1).gather(1, chosen)).sum(-1)


DIVERGENCES: dict[str, Divergence] = {
    "ce": cross_entropy,
    "kl": forward_kl,
    "rkl": reverse_kl,
    "jsd": jensen_shannon,
    "tvd": total_variation,
    "top": top_tokens,
}


@dataclass(frozen=True, slots=True)
class Loss:
    """A weighted sum of divergences.

    Attributes:
        text: the user's text.
        terms: weight and divergence of each term.
    """

    text: str
    terms: tuple[tuple[float, Divergence], ...]

    def __call__(self, logits: Tensor, target: Tensor, tokens: Tensor) -> Tensor:
        """Return the mean over A rows, differentiable in the head's logits.

        Args:
            logits: [A, V'], logits of the head.
            target: [A, V'], logits of the target; -inf for zero probability.
            tokens: Int64[A], tokens of the text; -1 if the head's vocabulary lacks them.
        """
        found: Tensor = _RowWise.apply(logits, target, tokens, self.rows)  # type: ignore[no-untyped-call]
        return found.mean()

    def rows(self, logits: Tensor, target: Tensor, tokens: Tensor) -> Tensor:
        """Return the loss of each row, [A], in float32."""
        return torch.stack([weight * each(logits, target, tokens) for weight, each in self.terms]).sum(0)


def parse_loss(text: str) -> Loss:
    """Parse a loss such as "kl", "kl + 0.1 ce" or "jsd(0.3)".

    Raises:
        UsageError: it is not a valid loss; the message says what is accepted.
    """
    return Loss(text, tuple((term.weight, _divergence(term)) for term in parse_terms(text)))


def _divergence(term: Term) -> Divergence:
    if term.number is None:
        return DIVERGENCES[term.name]
    if term.name == "jsd":
        return partial(jensen_shannon, share=term.number)
    return partial(top_tokens, count=int(term.number))


def _finite(logs: Tensor) -> Tensor:
    """Return log probabilities without -inf, so that 0 times them is 0."""
    return logs.clamp(min=torch.finfo(torch.float32).min)


class _RowWise(torch.autograd.Function):
    """The losses of rows [A]; their gradient is computed at the same time, chunk by chunk, and is all that is kept."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, tokens: Tensor, rows: Divergence) -> Tensor:
        count = max(1, CHUNK // max(1, logits.shape[-1]))
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        found = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        with torch.autocast(logits.device.type, enabled=False):
            for start in range(0, len(logits), count):
                part = slice(start, start + count)
                given = logits[part].detach().float()
                with torch.set_grad_enabled(gradient is not None):
                    given.requires_grad_(gradient is not None)
                    each = rows(given, target[part].float(), tokens[part])
                    total = each.sum()
                found[part] = each.detach()
                if gradient is not None:
                    gradient[part] = torch.autograd.grad(total, given)[0].to(logits.dtype)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return found

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outputs[0][:, None].to(gradient.dtype), None, None, None
