"""The interface of learners: a copy of a drafter's weights, and its loss and acceptance on a window."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from speculant.training.online.window import TextWindow


class Learner(Protocol):
    """A drafter's weights, copied for training.

    Attributes:
        live: the drafting module; its weights are only replaced as a whole, by `publish`.
        copy: the module that is trained, in float32.
        states: whether it learns from the target's hidden states; otherwise from its top tokens.
    """

    live: nn.Module
    copy: nn.Module
    states: bool

    def loss(self, window: TextWindow) -> Tensor | None:
        """Return the forward KL from the target to the copy where drafts were wrong; None if none were."""

    def acceptance(self, window: TextWindow) -> tuple[float, int]:
        """Return how many of the copy's drafted tokens the target would accept, and how many were measured.

        All positions with a known target distribution count, including correct ones: an update that gains only where
        drafts were wrong and loses elsewhere is no gain. With greedy decoding, a draft is accepted if it is the
        target's top token; otherwise with probability sum min(p, q).
        """


@torch.no_grad()
def publish(learner: Learner) -> None:
    """Copy the trained weights into the drafting module in place: recorded CUDA graphs read fixed addresses."""
    for live, trained in zip(learner.live.parameters(), learner.copy.parameters(), strict=True):
        live.copy_(trained)


@torch.no_grad()
def revert(learner: Learner) -> None:
    """Reset the copy to the drafting weights."""
    for live, trained in zip(learner.live.parameters(), learner.copy.parameters(), strict=True):
        trained.copy_(live)


def rate_drafts(p: Tensor, q: Tensor, *, greedy: bool) -> Tensor:
    """Return the acceptance Float32[n] of drafts from q [n, V] under p [n, V]."""
    if greedy:
        return (p.argmax(-1) == q.argmax(-1)).float()
    return torch.minimum(p, q).sum(-1)
