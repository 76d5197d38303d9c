"""The loss of distillation and its gradient, some rows of logits at a time.

Most of a step of a small model is spent on logits over the whole vocabulary. With the gradient written by hand they
take half the time that autograd takes, which goes through them once more for every operation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

BLOCK = 128  # rows of logits computed together
LEAST_OTHER = 1e-5  # of the probability of all tokens but the most probable ones, in the logarithm


@dataclass(frozen=True, slots=True)
class Expected:
    """What the target computed at N positions.

    Attributes:
        chosen: the tokens of its text, Int64[N].
        top_ids: its K most probable tokens, Int64[N, K].
        top_probs: their probabilities, Float32[N, K].
    """

    chosen: Tensor
    top_ids: Tensor
    top_probs: Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of three losses: the target's distribution, its chosen tokens, the rejection rate."""

    target: float
    tokens: float
    rejected: float


class DistillationLoss(torch.autograd.Function):
    """The weighted sum of three mean losses over positions, from hidden states and the head.

    `target` is the cross-entropy of the target's distribution, in which all tokens but the K most probable ones are
    one event; `tokens` that of the chosen tokens; `rejected` is one minus sum min(p, q) over the K tokens.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, hidden: Tensor, head: Tensor, expected: Expected, weights: Weights
    ) -> tuple[Tensor, Tensor]:
        """Return the sum, and the losses [target, tokens, rejected], which carry no gradient.

        Args:
            ctx: keeps the gradients.
            hidden: Float32[N, D].
            head: Float32[V, D].
            expected: of the same N positions.
            weights: of the losses.
        """
        rows = len(hidden)
        d_hidden, d_head = torch.empty_like(hidden), torch.zeros_like(head)
        losses = torch.zeros(3)
        for start in range(0, rows, BLOCK):
            part = slice(start, start + BLOCK)
            q = torch.softmax(hidden[part] @ head.T, dim=1)
            ids, p, chosen = expected.top_ids[part], expected.top_probs[part], expected.chosen[part, None]
            q_top, q_chosen = q.gather(1, ids), q.gather(1, chosen)
            other_p = (1 - p.sum(1, keepdim=True)).clamp(min=0)
            other_q = (1 - q_top.sum(1, keepdim=True)).clamp(min=LEAST_OTHER)
            below = q_top * (q_top < p)
            losses[0] -= (p * q_top.log()).sum() + (other_p * other_q.log()).sum()
            losses[1] -= q_chosen.log().sum()
            losses[2] += len(q) - torch.minimum(p, q_top).sum()

            # Each loss has a gradient in the logits of q times a number for the row, plus terms of a few tokens.
            ratio = other_p / other_q
            scale = weights.target * (p.sum(1, keepdim=True) - ratio * q_top.sum(1, keepdim=True))
            scale += weights.tokens + weights.rejected * below.sum(1, keepdim=True)
            d_logits = q.mul_(scale)
            d_logits.scatter_add_(1, ids, weights.target * (ratio * q_top - p) - weights.rejected * below)
            d_logits.scatter_add_(1, chosen, torch.full_like(q_chosen, -weights.tokens))
            torch.mm(d_logits, head, out=d_hidden[part])
            d_head.addmm_(d_logits.T, hidden[part])
        ctx.save_for_backward(d_hidden.div_(rows), d_head.div_(rows))
        losses /= rows
        total = losses @ torch.tensor([weights.target, weights.tokens, weights.rejected])
        ctx.mark_non_differentiable(losses)
        return total, losses

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, d_total: Tensor, _d_losses: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients that were computed with the loss."""
        d_hidden, d_head = ctx.saved_tensors
        return d_hidden * d_total, d_head * d_total, None, None
