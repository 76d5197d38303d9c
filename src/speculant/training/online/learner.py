"""The contract of what learns: a copy of a drafter's weights, and its loss and acceptance on a window."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from speculant.training.online.window import TextWindow


class Learner(Protocol):
    """A drafter's weights, copied for training.

    Attributes:
        live: the module that drafts; its weights are only ever replaced as a whole, by `publish`.
        copy: the module that is trained, in float32.
        states: whether it learns from the target's hidden states; else from its best tokens.
    """

    live: nn.Module
    copy: nn.Module
    states: bool

    def loss(self, window: TextWindow) -> Tensor | None:
        """Return the forward KL of the target's distributions to the copy's where drafts were wrong; None: nowhere."""

    def acceptance(self, window: TextWindow) -> tuple[float, int]:
        """Return how many drafted tokens of the copy the target would accept, and how many were counted.

        All positions whose distribution by the target is known count, right ones too: an update that gains where
        drafts were wrong and loses elsewhere is none. Where decoding was greedy, a draft is accepted that is the
        target's best token; else with the probability sum min(p, q).
        """


@torch.no_grad()
def publish(learner: Learner) -> None:
    """Copy the trained weights into the module that drafts, in place: recorded CUDA graphs read them where they are."""
    for live, trained in zip(learner.live.parameters(), learner.copy.parameters(), strict=True):
        live.copy_(trained)


@torch.no_grad()
def revert(learner: Learner) -> None:
    """Copy the weights that draft back into the copy."""
    for live, trained in zip(learner.live.parameters(), learner.copy.parameters(), strict=True):
        trained.copy_(live)


def accepted(p: Tensor, q: Tensor, *, greedy: bool) -> Tensor:
    """Return the acceptance Float32[n] of drafts from q [n, V] under p [n, V]."""
    if greedy:
        return (p.argmax(-1) == q.argmax(-1)).float()
    return torch.minimum(p, q).sum(-1)
