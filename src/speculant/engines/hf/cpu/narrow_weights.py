"""Bfloat16 copies of float weights, for drafting only: half the bytes to read may cost acceptance, never the text."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

ROWS = 4  # maximum rows of a product; above, converting takes longer than reading


class NarrowWeights:
    """The copies. Each is made when its weight is first requested, and again after torch has changed the weight."""

    def __init__(self) -> None:
        self._copies = WeakIdKeyDictionary()  # weight -> its state and the copy

    def __call__(self, weight: Tensor) -> Tensor:
        """Return the copy of a weight, or the weight itself if it is not float32."""
        if weight.dtype is not torch.float32:
            return weight
        state = weight.data_ptr(), None if weight.is_inference() else weight._version
        found: tuple[object, Tensor] | None = self._copies.get(weight)  # type: ignore[no-untyped-call]
        if found is None or found[0] != state:
            found = self._copies[weight] = state, weight.detach().to(torch.bfloat16)
        return found[1]
