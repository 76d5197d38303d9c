"""A new MTP head for a target that ships without one."""

from __future__ import annotations

import torch
from torch import nn

from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.mtp.head import MtpHead
from speculant.drafters.heads.mtp.module import MtpModule
from speculant.drafters.heads.target_layer import FULL
from speculant.drafters.heads.training.shapes import SPREAD


def new_mtp(target: TargetParts) -> MtpHead:
    """Return a head whose layer and final norm are copies of the target's last ones.

    At first it passes the target's state on to them: the norms before the projection only scale, and the projection is
    the identity on the state, plus noise on both inputs.

    Raises:
        UnsupportedError: the target has no layer of full attention to begin with.
    """
    module = MtpModule(target, [target.new_layer(None, FULL)])
    module.float().requires_grad_(True)
    for norm in (module.enorm, module.hnorm):
        _flatten(norm, target.hidden_size)
    nn.init.normal_(module.eh_proj.weight, std=SPREAD)
    with torch.no_grad():
        module.eh_proj.weight[:, target.hidden_size :] += torch.eye(target.hidden_size)
    return MtpHead([module])


def _flatten(norm: nn.Module, hidden: int) -> None:
    """Make a norm multiply by 1 alone, whether its class multiplies by its weights or by these plus 1."""
    weight = norm.weight
    assert isinstance(weight, nn.Parameter)
    signs = torch.ones(hidden, device=weight.device)
    signs[1::2] = -1  # its mean is 0 and its mean square 1, so that any norm returns it times the weights
    with torch.no_grad():
        shift = (norm(signs) * signs - weight).mean().round()
        weight.fill_(1 - float(shift))
