"""Grouped-query attention (GQA): several query heads share one key-value head.

With GQA, transformers' "sdpa" function first repeats keys and values for every query head, which takes as long as the
attention itself. For the few rows of a draft, `attention.cpp` reads them once for the whole group; for more rows,
PyTorch's operation reads them in place.

Models with quantised weights use `attention.cpp` for any number of rows and any heads: the last bits of PyTorch's
results depend on the number of rows, and rounding the inputs of the next product to 8 bits would make these differences
visible.

The functions are registered with transformers once, under their own names, which only the shadow modules of an
accelerated pass use (`shadow.py`). Unsupported calls go to transformers' own function.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from speculant.engines.hf.cpu.products import DTYPES

NAME, EXACT_NAME = "speculant-gqa", "speculant-exact"
MAX_QUERIES = 192  # per key-value head; with more, PyTorch's operation is as fast
TILE = 8  # head sizes must be multiples of it
# Options that change the attention, or for which the call must be refused.
OTHER_OPTIONS = ("softcap", "output_attentions", "position_bias", "cache", "s_aux")


class AttentionArguments(ctypes.Structure):
    """The struct `Attention` of attention.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "mask", "y")),
        *((name, ctypes.c_int64) for name in ("batch", "heads", "kv_heads", "n", "length", "head")),
        *(
            (f"{name}_step", ctypes.c_int64)
            for name in ("k_batch", "k_head", "v_batch", "v_head", "mask_batch", "mask")
        ),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("is_bf16", "causal")),
    )


class GQAttention:
    """An attention function with transformers' signature, for models whose query heads share key-value heads.

    Attributes:
        exact: whether a row's result must be independent of the other rows to the last bit: then it serves all models.
        name: name registered with transformers.
    """

    def __init__(self, native: ctypes.CDLL, *, exact: bool = False) -> None:
        """Use the library that `load_native` returned."""
        self._native, self.exact = native, exact
        self.name = EXACT_NAME if exact else NAME

    def register(self) -> None:
        """Register the function with transformers."""
        AttentionInterface.register(self.name, self)

    def rename(self, implementation: Any) -> Any:
        """Return the function's name in place of "sdpa", unless transformers' own function was replaced."""
        return self.name if implementation == "sdpa" and is_plain_sdpa() else implementation

    def serves(self, module: Any, shape: Sequence[int], key: Tensor, *, masked: bool) -> bool:
        """Return whether queries [B, H, n, D], with a mask or without one, use this attention."""
        groups, causal = shape[1] // key.shape[1], not masked and shape[2] > 1
        return (
            key.is_cpu
            and getattr(module, "num_key_value_groups", 1) == groups >= (1 if self.exact else 2)
            and (not causal or (self.exact and key.shape[2] == shape[2] and getattr(module, "is_causal", True)))
        )

    def arguments(
        self, shape: Sequence[int], key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
    ) -> AttentionArguments | None:
        """Return the compiled code's arguments without queries and output; None if it is slower or unsupported.

        Args:
            shape: [B, H, n, D] of the queries.
            key, value: [B, H / groups, L, D].
            mask: Bool[B or 1, 1, n, L], True where a query attends to a key; None for all up to its own.
            scale: factor of the products; None for D ** -0.5.
        """
        batch, heads, rows, head = shape
        kv_heads, length = key.shape[1:3]
        if not self.exact and heads // kv_heads * rows > MAX_QUERIES:
            return None
        if heads % kv_heads or head % TILE or torch.is_grad_enabled():
            return None
        if key.shape[0] != batch or value.shape != key.shape or value.dtype is not key.dtype:
            return None
        for each in (key, value):
            if each.dtype not in DTYPES or each.shape[3] != head or each.stride()[2:] != (head, 1):
                return None
        place = mask_place(mask, batch, rows, length)
        if place is None:
            return None
        visible, *mask_steps = place
        steps = (key.stride(0), key.stride(1), value.stride(0), value.stride(1))
        sizes = (batch, heads, kv_heads, rows, length, head, *steps, *mask_steps)
        factor = head**-0.5 if scale is None else scale
        is_bf16, causal = key.dtype is torch.bfloat16, mask is None and rows > 1
        return AttentionArguments(
            None, key.data_ptr(), value.data_ptr(), visible, None, *sizes, factor, is_bf16, causal
        )

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        """Return [B, n, H, D] for queries [B, H, n, D] and keys and values [B, H / groups, L, D], without weights."""
        serves = not (dropout or needs_other_attention(options))
        serves = serves and self.serves(module, query.shape, key, masked=attention_mask is not None)
        call = self.arguments(query.shape, key, value, attention_mask, scaling) if serves else None
        if not serves or (self.exact and (call is None or query.dtype is not key.dtype)):
            others = {"dropout": dropout, "scaling": scaling, **options}
            answer: tuple[Tensor, Any] = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
            return answer
        if call is None or query.dtype is not key.dtype:
            output = F.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling, enable_gqa=True)
            return output.transpose(1, 2).contiguous(), None
        batch, heads, rows, head = query.shape
        query, output = query.contiguous(), query.new_empty((batch, rows, heads, head))
        call.q, call.y = query.data_ptr(), output.data_ptr()
        self._native.attention(ctypes.byref(call), 1, torch.get_num_threads())
        return output, None


def needs_other_attention(options: Mapping[str, Any]) -> bool:
    """Return whether an option of an attention call requires another function."""
    return any(options.get(name) is not None for name in OTHER_OPTIONS)


def mask_place(mask: Tensor | None, batch: int, rows: int, length: int) -> tuple[int | None, int, int] | None:
    """Return the address of a mask and its steps from sequence to sequence and from row to row.

    Args:
        mask: as in `GQAttention.arguments`; without one, the address is None.
        batch, rows, length: B, n and L.

    Returns:
        None if compiled code cannot read the mask.
    """
    if mask is None:
        return None, 0, 0
    fits = mask.shape[0] in (1, batch) and mask.shape[1:] == (1, rows, length)
    if not fits or mask.dtype is not torch.bool or (length > 1 and mask.stride(3) != 1):
        return None
    return mask.data_ptr(), mask.stride(0) if mask.shape[0] > 1 else 0, mask.stride(2)


def attention_settings(module: Any) -> tuple[Any, ...]:
    """Return the settings of an attention module that its arguments depend on: groups, causality and scale."""
    return getattr(module, "num_key_value_groups", 1), getattr(module, "is_causal", True), module.scaling


def is_plain_sdpa() -> bool:
    """Return whether "sdpa" refers to transformers' own function."""
    return ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
