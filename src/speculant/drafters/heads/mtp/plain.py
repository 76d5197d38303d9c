"""MTP modules with one plain decoder layer, run as a head of EAGLE's family: with its rows, batches and compiled steps.

A module reads a feature and an embedding, and its normalised output is the feature of the next row, so it differs from
EAGLE's head only in its norms. If the target's class computes the same as `layers.DecoderLayer`, that class and this
head give the same logits up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.engine import LAST_LAYER
from speculant.drafters.heads.feature_state import JointHead
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import DecoderLayer, LayerShape, RMSNorm, Rotary
from speculant.drafters.heads.mtp.module import MtpModule
from speculant.drafters.heads.step import StepParts


class PlainMtp(nn.Module, JointHead):
    """A view of a module, which shares the module's parameters."""

    taps = (LAST_LAYER,)
    depth = None
    paths = ()

    def __init__(
        self, module: MtpModule, own: Mapping[str, nn.Parameter], shape: LayerShape, ids: Tensor | None
    ) -> None:
        """Create a view of a module with one layer.

        Args:
            module: the module.
            own: parameters of its layer, by the names of `layers.DecoderLayer`.
            shape: shape of the layer.
            ids: Int64[V'], the target's token for each logit; None if the vocabularies are equal.
        """
        super().__init__()
        self.ids = ids
        with torch.device("meta"):
            layer = DecoderLayer(shape)
        _share(layer, own)
        self.layers, self.rotary = nn.ModuleList([layer]), Rotary(shape)
        self.enorm, self.hnorm = _norm(module.enorm, shape), _norm(module.hnorm, shape)
        self.norm = None if isinstance(module.norm, nn.Identity) else _norm(module.norm, shape)
        self._module = [module]  # in a list, since its parameters are registered already

    def embed(self, ids: Tensor, target: TargetParts) -> Tensor:
        return self._module[0].embed(ids, target)

    def features(self, hidden: Tensor, target: TargetParts) -> Tensor:
        return target.norm(hidden[..., -1, :])

    def layer_input(self, index: int, embeddings: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        fused = self._module[0].fuse(embeddings, x)
        return fused, self.layer(index).attention_input(fused)

    def step_parts(self) -> StepParts:
        module = self._module[0]
        return StepParts(
            fuse=module.eh_proj,
            fuse_norms=(self.enorm, self.hnorm),
            feature_first=module.hidden_first,
            layers=(self.layer(0),),
            normed_residual=False,
            norm=self.norm,
            carries_norm=self.norm is not None,
            output=module.lm_head,
            rotary=self.rotary,
            embeddings=module.embed_tokens,
            ids=self.ids,
        )

    def carry(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)

    def logits(self, features: Tensor, target: TargetParts) -> Tensor:
        return self._module[0].logits(features, target)

    def shares(self, module: MtpModule) -> bool:
        """Return whether the parameters are still those of the module."""
        held = {id(each) for each in module.parameters()}
        return all(id(each) in held for each in self.parameters())


def view_plain(module: MtpModule, target: TargetParts, ids: Tensor | None) -> PlainMtp | None:
    """Return a view of a module, with the tokens `ids` of its logits; None if its layers are not one plain layer."""
    if len(module.layers) != 1:
        return None
    norms = [each for each in (module.enorm, module.hnorm, module.norm) if not isinstance(each, nn.Identity)]
    found: Mapping[str, Any] | None = target.plain_shape(module.layers[0], norms)
    if found is None:
        return None
    shape = LayerShape(**found)
    own = {name.partition(".")[2]: each for name, each in module.layers[0].named_parameters()}
    with torch.device("meta"):
        wanted = {name for name, _ in DecoderLayer(shape).named_parameters()}
    return PlainMtp(module, own, shape, ids) if own.keys() == wanted else None


def _share(layer: DecoderLayer, own: Mapping[str, nn.Parameter]) -> None:
    for name, parameter in own.items():
        above, _, last = name.rpartition(".")
        setattr(layer.get_submodule(above), last, parameter)


def _norm(module: nn.Module, shape: LayerShape) -> RMSNorm:
    """Return a norm that shares the weight of a norm of the target's class."""
    with torch.device("meta"):
        norm = RMSNorm(shape.hidden, shape.eps)
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    norm.weight = weight
    return norm
