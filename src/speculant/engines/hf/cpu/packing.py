"""Packed copies of weights, for oneDNN's products.

The model keeps its plain weights: prompts, other callers, adapters and `state_dict` read them. So packing takes memory
for a second copy and is done only for a measured gain and if memory allows it. A copy must never outlive its weight:
before each product its address, its version counter (which every in-place operation of torch increments) and a sample
of its values are compared. Writes that bypass the counter, through `weight.data` or from other libraries, can miss the
sample; `refresh`, at the beginning of every request, compares checksums of all values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch
from torch import Tensor

from speculant.engines.free_memory import available_memory
from speculant.engines.hf.cpu.products import pack

ROWS = 16  # number of rows for which oneDNN lays out weights
SAMPLES = 64
MAX_SHARE = 0.5  # share of the free memory


class PackedWeight:
    """The packed copy of one weight."""

    __slots__ = ("_checksum", "_native", "_sample", "_state", "_tensor")

    def __init__(self, native: ctypes.CDLL, weight: Tensor) -> None:
        """Pack [outs, k]."""
        self._native = native
        self._pack(weight)

    def of(self, weight: Tensor) -> Tensor | None:
        """Return the packed copy, or None if the weight has changed since it was packed."""
        if _state(weight) != self._state or not torch.equal(_sample(weight), self._sample):
            return None
        return self._tensor

    def refresh(self, weight: Tensor) -> None:
        """Repack the weight if it has changed."""
        if self.of(weight) is None or self._sum(weight) != self._checksum:
            self._pack(weight)

    def _pack(self, weight: Tensor) -> None:
        self._state: tuple[object, ...] = ()  # after an interrupt the copy matches no weight
        self._tensor, self._sample, self._checksum = pack(weight, ROWS), _sample(weight).clone(), self._sum(weight)
        self._state = _state(weight)

    def _sum(self, weight: Tensor) -> int:
        size = weight.numel() * weight.element_size()
        found: int = self._native.checksum(weight.data_ptr(), size, torch.get_num_threads())
        return found


def _state(weight: Tensor) -> tuple[object, ...]:
    return weight.data_ptr(), weight.shape, weight.dtype, None if weight.is_inference() else weight._version


def _sample(weight: Tensor) -> Tensor:
    numbers = weight.detach().view(-1)
    return numbers[:: max(len(numbers) // SAMPLES, 1)]


def memory_allows(weights: Iterable[Tensor]) -> tuple[bool, int]:
    """Return whether copies of these weights take at most half of the free memory, and how many bytes they take."""
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    return size <= MAX_SHARE * available_memory(), size
