"""A new EAGLE-1 head, of the target's own layer sizes."""

from __future__ import annotations

import torch

from speculant.drafters.heads.eagle.head import EagleHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.shapes import spread_weights, target_shape


def new_eagle(target: TargetParts) -> EagleHead:
    """Return a head that at first passes the hidden state on: `fc` is the identity on it, plus noise.

    `fc` has no bias, as in the authors' heads for Llama 3: not every engine has a place for one.
    """
    head = EagleHead(target_shape(target), bias=False)
    spread_weights(head)
    with torch.no_grad():
        head.fc.weight[:, target.hidden_size :] += torch.eye(target.hidden_size)
    return head
