"""A module with packed matrices, and the operations that a model may apply to it.

The packed tensors are buffers, so that checks for changes of a model see them. They are not part of its `state_dict`,
which raises: without them it would silently hold half a model. They keep their dtypes when the model is cast, and stay
on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from speculant.core.errors import UnsupportedError
from speculant.engines.hf.quantized.products import check_weight
from speculant.engines.hf.quantized.weight import QuantizedWeight

DTYPES = (torch.float32, torch.bfloat16)
_PREFIX = "packed_"  # prefix of the buffers' names


class PackedModule(nn.Module):
    """A module with quantised matrices.

    Attributes:
        matrices: matrices by name, "" for a single one. They are never replaced; their tensors are the buffers.
        dtype: dtype of the module's outputs.
    """

    def __init__(self, matrices: Mapping[str, QuantizedWeight], *, dtype: torch.dtype) -> None:
        """Take the matrices.

        Raises:
            UnsupportedError: there are no products in this dtype.
            ValueError: compiled code cannot read a matrix.
        """
        super().__init__()
        _check_dtype(dtype)
        for weight in matrices.values():
            check_weight(weight)
        self.matrices, self.dtype = dict(matrices), dtype
        self._structs: Any = None  # structs for the compiled code, created on first use
        for matrix, weight in matrices.items():
            for name, part in weight.tensors().items():
                self.register_buffer(f"{_PREFIX}{matrix and matrix + '_'}{name}", part, persistent=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_structs": None}  # addresses are not valid in copies and pickles

    def find_packed(self) -> dict[str, Tensor]:
        """Return the packed tensors by the names of their buffers."""
        return {name: part for name, part in self._buffers.items() if name.startswith(_PREFIX) and part is not None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Cast or move the module with its model; the packed tensors stay unchanged.

        Raises:
            UnsupportedError: the target is not a CPU, or a dtype without products.
        """
        like = fn(torch.empty(0, dtype=self.dtype))
        if like.device.type != "cpu":
            raise UnsupportedError(
                f"quantised weights are multiplied on the CPU and cannot be moved to {like.device.type}; load the "
                "model's own weights there instead."
            )
        _check_dtype(like.dtype)
        held = self.find_packed()
        for name in held:
            del self._buffers[name]
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._buffers.update(held)
        self.dtype = like.dtype
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> NoReturn:
        raise UnsupportedError(
            f"the weights of {prefix.rstrip('.') or type(self).__name__} are packed and have no place in a state_dict; "
            "keep the file that the model was loaded from, or save the model before it is quantised."
        )


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"quantised weights are multiplied in float32 or bfloat16, not {dtype}; load the model in one of these."
        )
