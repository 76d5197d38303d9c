"""Copies of float weights in bfloat16, for what only drafts: half the bytes to read may cost acceptance, never text."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

ROWS = 4  # of a product; with more, converting takes longer than reading


class NarrowWeights:
    """The copies. One is made when its weight is first asked for, and again where torch has changed that."""

    def __init__(self) -> None:
        self._copies = WeakIdKeyDictionary()  # by weight: its state, and the copy

    def __call__(self, weight: Tensor) -> Tensor:
        """Return the copy of a weight; a weight that is not float32 itself."""
        if weight.dtype is not torch.float32:
            return weight
        state = weight.data_ptr(), None if weight.is_inference() else weight._version
        found: tuple[object, Tensor] | None = self._copies.get(weight)  # type: ignore[no-untyped-call]
        if found is None or found[0] != state:
            found = self._copies[weight] = state, weight.detach().to(torch.bfloat16)
        return found[1]
