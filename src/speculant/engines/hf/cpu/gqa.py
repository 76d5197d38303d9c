"""Attention with several query heads on one head of keys and values.

Transformers first repeats keys and values for every query head, which takes as long as the attention itself. For the
few rows of a draft `attention.cpp` reads them once for the whole group; for more, PyTorch's own operation reads them
where they lie.

The function is transformers' for the whole process while a pass lasts, so what it cannot do goes to theirs.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from speculant.engines.hf.cpu.linear import DTYPES

MOST_ROWS = 192  # queries on one head of keys; with more, PyTorch's operation is as fast
TILE = 8  # a head's length must be a multiple of it
# With any of these the attention is another one, or the call is to be refused.
OTHERS = ("softcap", "output_attentions", "position_bias", "cache", "s_aux")


class Attention(ctypes.Structure):
    """The `Attention` of attention.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "mask", "y")),
        *((name, ctypes.c_int64) for name in ("batch", "heads", "kv_heads", "n", "length", "head")),
        *(
            (f"{name}_step", ctypes.c_int64)
            for name in ("k_batch", "k_head", "v_batch", "v_head", "mask_batch", "mask")
        ),
        ("scale", ctypes.c_float),
        ("narrow", ctypes.c_int),
    )


class GroupedAttention:
    """Transformers' "sdpa" function, for models that share heads of keys and values."""

    def __init__(self, native: ctypes.CDLL) -> None:
        self._native = native

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Take the place of the "sdpa" function, unless somebody has put their own there.

        Another thread's pass may end first; then the rest of this one makes the copies.
        """
        functions = ALL_ATTENTION_FUNCTIONS
        try:
            if functions["sdpa"] is sdpa_attention_forward:
                functions["sdpa"] = self
            yield
        finally:
            if functions["sdpa"] is self:
                with contextlib.suppress(KeyError):  # taken away by another thread just now
                    del functions["sdpa"]

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
        """Return [B, n, H, D] of queries [B, H, n, D] on keys and values [B, H / groups, L, D], and no weights."""
        if dropout or not self.grouped(module, query.shape, key, attention_mask, options):
            others = {"dropout": dropout, "scaling": scaling, **options}
            answer: tuple[Tensor, Any] = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
            return answer
        call = prepared(query.shape, key, value, attention_mask, scaling)
        if call is None or query.dtype is not key.dtype:
            output = F.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling, enable_gqa=True)
            return output.transpose(1, 2).contiguous(), None
        batch, heads, rows, head = query.shape
        query, output = query.contiguous(), query.new_empty((batch, rows, heads, head))
        call.q, call.y = query.data_ptr(), output.data_ptr()
        self._native.attention(ctypes.byref(call), torch.get_num_threads())
        return output, None

    @staticmethod
    def grouped(
        module: Any, shape: Sequence[int], key: Tensor, mask: Tensor | None, options: Mapping[str, Any]
    ) -> bool:
        """Say whether queries of the shape [B, H, n, D] share heads of keys, and nothing else is wanted."""
        return (
            (mask is not None or shape[2] == 1)
            and key.is_cpu
            and getattr(module, "num_key_value_groups", 1) == shape[1] // key.shape[1] > 1
            and not any(options.get(name) is not None for name in OTHERS)
        )


def prepared(
    shape: Sequence[int], key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> Attention | None:
    """Return what the compiled code needs but for queries and answer, or None if it cannot do it or gains nothing.

    Args:
        shape: [B, H, n, D] of the queries.
        key, value: [B, H / groups, L, D].
        mask: Bool[B or 1, 1, n, L], True where a query sees a key; None for all.
        scale: of the products; None for D ** -0.5.
    """
    batch, heads, rows, head = shape
    kv_heads, length = key.shape[1:3]
    if heads // kv_heads * rows > MOST_ROWS or heads % kv_heads or head % TILE or torch.is_grad_enabled():
        return None
    if key.shape[0] != batch or value.shape != key.shape or value.dtype is not key.dtype:
        return None
    for held in (key, value):
        if held.dtype not in DTYPES or held.shape[3] != head or held.stride()[2:] != (head, 1):
            return None
    steps = (key.stride(0), key.stride(1), value.stride(0), value.stride(1))
    seen, seen_steps = None, (0, 0)
    if mask is not None:
        whole = mask.shape[0] in (1, batch) and mask.shape[1:] == (1, rows, length)
        if not whole or mask.dtype is not torch.bool or (length > 1 and mask.stride(3) != 1):
            return None
        seen, seen_steps = mask.data_ptr(), (mask.stride(0) if mask.shape[0] > 1 else 0, mask.stride(2))
    sizes = (batch, heads, kv_heads, rows, length, head, *steps, *seen_steps)
    factor = head**-0.5 if scale is None else scale
    narrow = key.dtype is torch.bfloat16
    return Attention(None, key.data_ptr(), value.data_ptr(), seen, None, *sizes, factor, narrow)
