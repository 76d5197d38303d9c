"""Training an MTP module to draft several tokens on its own.

The first depth has DeepSeek-V3's objective (arXiv 2412.19437, section 2.2), with the target's distribution instead of
the text; further depths continue from the module's own states, as FastMTP (arXiv 2509.18362) shares one module. In
addition there is EAGLE's loss (arXiv 2401.15077, section 4.2): the smooth L1 distance of the module's state to the
target's at the next token, so that its states can be fed back.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.mtp.head import MtpHead
from speculant.drafters.heads.mtp.module import MtpModule
from speculant.drafters.heads.target_layer import FULL, TargetLayer
from speculant.drafters.heads.training.anchor_grid import AnchorGrid
from speculant.drafters.heads.training.recipe import DepthOutput, Recipe, TrainBatch
from speculant.drafters.heads.training.shapes import SPREAD


class MtpRecipe(Recipe):
    """See `drafters.heads.training.recipe.Recipe`; for heads with one module of one layer."""

    head: MtpHead

    def __init__(self, head: MtpHead, depth: int = 4) -> None:
        """Set the head.

        Args:
            head: head to be trained.
            depth: number of tokens drafted below each anchor; the first from the target's state.

        Raises:
            UnsupportedError: the head has several modules or layers.
        """
        if len(head) > 1 or len(head.module(0).layers) > 1:
            raise UnsupportedError(
                "only MTP heads of one module with one layer can be trained; this one has more. Leave out the training."
            )
        self.head, self.depth = head, depth

    def run(self, batch: TrainBatch, target: TargetParts) -> Iterator[DepthOutput]:
        module, layer = self.head.module(0), self.head.module(0).layers[0]
        assert isinstance(layer, TargetLayer)
        text, place = batch.anchors.unbind(1)
        grid, rows, length = AnchorGrid(batch.anchors, len(batch.ids)), layer.open(), batch.ids.shape[1] - 1
        places = torch.arange(length, device=batch.ids.device)
        committed = places <= grid.places[..., None]  # Bool[B, a, T - 1], rows of its text that a drafted row sees
        own = torch.eye(grid.places.shape[1], dtype=torch.bool, device=places.device).expand(len(batch.ids), -1, -1)
        x = module.fuse(module.embed(batch.ids[:, 1:], target), batch.final[:, :-1])
        causal = (places <= places[:, None]).expand(len(x), -1, -1)
        found: Tensor = module.norm(layer(x, places.expand(len(x), -1), causal, rows)[text, place])
        for depth in range(1, self.depth + 1):
            if depth > 1:
                x = grid.spread(module.fuse(module.embed(batch.ids[text, place + depth], target), found))
                seen = torch.cat([committed, *[own] * (depth - 1)], dim=-1)
                found = module.norm(grid.flat(layer(x, grid.places + depth - 1, seen, rows)))
            true = batch.final[text, place + depth]
            with torch.no_grad():
                wanted = target.project(true)
            yield DepthOutput(
                logits=module.logits(found, target),
                target=wanted,
                tokens=batch.ids[text, place + depth + 1],
                extra=smooth_l1_loss(found.float(), true.float()),
            )


def new_mtp(target: TargetParts) -> MtpHead:
    """Return a head whose layer and final norm are copies of the target's last ones.

    Initially it passes the target's state on to them: the norms before the projection only scale, and the projection is
    the identity on the state, plus noise on both inputs.

    Raises:
        UnsupportedError: the target has no layer of full attention to start from.
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
    """Make a norm's factors 1, whether its class multiplies by its weights or by its weights plus 1."""
    weight = norm.weight
    assert isinstance(weight, nn.Parameter)
    signs = torch.ones(hidden, device=weight.device)
    signs[1::2] = -1  # mean 0 and mean square 1, so that any norm returns it times the norm's weights
    with torch.no_grad():
        shift = (norm(signs) * signs - weight).mean().round()
        weight.fill_(1 - float(shift))
