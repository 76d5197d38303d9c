"""A copy of the target that learns together with its heads: all weights, or low-rank additions to those of the layers.

LoRA (Hu et al. 2022, arXiv 2106.09685, section 4.1): W x becomes W x + (alpha / r) B A x, where A [r, in] starts random
and B [out, r] as 0, so that the copy starts as the target. The copy's other weights are the target's own tensors.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.modules import quantized_modules
from speculant.engines.hf.views.model_view import find_layers
from speculant.engines.hf.views.target_parts import HFTargetParts

ALPHA = 16.0  # as in Medusa's runs


class LowRank(nn.Module):
    """A linear layer with a trained addition of rank r, in float32."""

    def __init__(self, own: nn.Linear, rank: int) -> None:
        """Add to a linear layer, whose weights stay as they are."""
        super().__init__()
        self._own, self.factor = (own,), ALPHA / rank  # in a tuple: the weights are not part of this module's state
        self.a = nn.Parameter(torch.empty(rank, own.in_features, device=own.weight.device, dtype=torch.float32))
        self.b = nn.Parameter(torch.zeros(own.out_features, rank, device=own.weight.device, dtype=torch.float32))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output [..., out] for x [..., in]."""
        (own,) = self._own
        found: Tensor = own(x)
        return found + (self.factor * (x.to(self.a.dtype) @ self.a.T) @ self.b.T).to(found.dtype)

    @torch.no_grad()
    def merge_weights(self) -> nn.Linear:
        """Return one linear layer with the sum of both weights, in the dtype of the layer."""
        (own,) = self._own
        found = copy.deepcopy(own)
        found.weight += (self.factor * self.b @ self.a).to(found.weight.dtype)
        return found


class Backbone(nn.Module):
    """A copy of the target. Its parameters are those that are trained; dropout stays off.

    Attributes:
        parts: embeddings, norm and projection of the copy.
        rank: rank of the additions; 0 if all weights are trained.
    """

    def __init__(self, model: Any, rank: int) -> None:
        """Copy a target.

        Args:
            model: a causal LM of transformers; it is not changed.
            rank: rank of the additions to the linear layers of all decoder layers; 0 to train all weights, in float32.

        Raises:
            UnsupportedError: its weights are packed, or its decoder layers or their linear layers cannot be found.
        """
        super().__init__()
        if next(iter(quantized_modules(model)), None) is not None:
            raise UnsupportedError(
                "the weights of a quantised model cannot be trained. Name a float checkpoint by --model, or train the "
                "heads alone, without --joint."
            )
        shared: dict[int, Any] = {} if not rank else {id(w): w for w in (*model.parameters(), *model.buffers())}
        copied = copy.deepcopy(model, shared)
        self.rank, self._dtype = rank, model.dtype
        if rank:
            self._model, self.added = (copied,), nn.ModuleList(_add_low_rank(copied, rank))
        else:
            self.model = copied.float().requires_grad_(True)
        self.parts = HFTargetParts(copied)
        self.train()

    @property
    def copied(self) -> Any:
        """The copy."""
        return self._model[0] if self.rank else self.model

    def train(self, _mode: bool = True) -> Self:
        """Stay in evaluation mode."""
        self.copied.eval()
        return super().train(False)

    def states(self, ids: Tensor) -> Tensor:
        """Return the states [B, T, D] after the final norm, of right-padded texts Int64[B, T]."""
        found: Tensor = self.copied.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return found

    def finish(self) -> Any:
        """Return the tuned model, in the target's dtype and without separate additions."""
        tuned = self.copied
        if self.rank:
            for module in [*tuned.modules()]:
                for name, child in [*module._modules.items()]:
                    if isinstance(child, LowRank):
                        module._modules[name] = child.merge_weights()
        return tuned.to(self._dtype).requires_grad_(False)


def _add_low_rank(model: Any, rank: int) -> list[LowRank]:
    """Replace the linear layers of all decoder layers; return the additions in order."""
    place, found = find_layers(model), list[LowRank]()
    for layer in () if place is None else place.layers:
        for module in [*layer.modules()]:
            for name, child in [*module._modules.items()]:
                if type(child) is nn.Linear:
                    module._modules[name] = own = LowRank(child, rank)
                    found.append(own)
    if not found:
        raise UnsupportedError(
            f"the decoder layers of {type(model).__name__} have no linear layers to which low-rank weights can be "
            "added. Train all weights with --rank 0, or the heads alone, without --joint."
        )
    return found
