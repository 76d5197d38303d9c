"""Attention with several query heads on one head of keys and values.

Transformers first repeats keys and values for every query head, which takes as long as the attention itself. For the
few rows of a draft `attention.cpp` reads them once for the whole group; for more, PyTorch's own operation reads them
where they lie.

The function is transformers' for the whole process while a pass lasts, so what it cannot do goes to theirs.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

MOST_ROWS = 192  # queries on one head of keys; with more, PyTorch's operation is as fast
TILE = 8  # a head's length must be a multiple of it
# With any of these the attention is another one, or the call is to be refused.
OTHERS = ("softcap", "output_attentions", "position_bias", "cache", "s_aux")

_STEPS = tuple(f"{name}_{step}" for name in ("k", "v") for step in ("batch_step", "head_step"))


class _Attention(ctypes.Structure):
    """The `Attention` of attention.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "mask", "y")),
        *((name, ctypes.c_int64) for name in ("batch", "heads", "kv_heads", "n", "length", "head")),
        *((name, ctypes.c_int64) for name in (*_STEPS, "mask_batch_step", "mask_step")),
        ("scale", ctypes.c_float),
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
        alone = query.shape[2] == 1
        fits = (
            (attention_mask is not None or alone)
            and query.is_cpu
            and getattr(module, "num_key_value_groups", 1) == query.shape[1] // key.shape[1] > 1
            and not dropout
            and not any(options.get(name) is not None for name in OTHERS)
        )
        if not fits:
            others = {"dropout": dropout, "scaling": scaling, **options}
            answer: tuple[Tensor, Any] = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
            return answer
        if _few(query, key, value, attention_mask):
            return self._read_once(query, key, value, attention_mask, scaling), None
        output = F.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling, enable_gqa=True)
        return output.transpose(1, 2).contiguous(), None

    def _read_once(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
        batch, heads, rows, head = query.shape
        query, output = query.contiguous(), query.new_empty((batch, rows, heads, head))
        seen, mask_step, batch_step = None, 0, 0
        if mask is not None:
            seen, mask_step = mask.data_ptr(), mask.stride(2)
            batch_step = mask.stride(0) if mask.shape[0] > 1 else 0
        call = _Attention(
            *(query.data_ptr(), key.data_ptr(), value.data_ptr(), seen, output.data_ptr()),
            *(batch, heads, key.shape[1], rows, key.shape[2], head),
            *(key.stride(0), key.stride(1), value.stride(0), value.stride(1), batch_step, mask_step),
            head**-0.5 if scale is None else scale,
        )
        self._native.attention(ctypes.byref(call), torch.get_num_threads())
        return output


def _few(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Say whether the compiled code can do it and gains by it."""
    batch, heads, rows, head = query.shape
    length = key.shape[2]
    whole = all(
        each.dtype is torch.float32 and each.stride(3) == 1 and each.stride(2) == head and each.shape[3] == head
        for each in (key, value)
    )
    return (
        whole
        and query.dtype is torch.float32
        and heads // key.shape[1] * rows <= MOST_ROWS
        and heads % key.shape[1] == 0 == head % TILE
        and not torch.is_grad_enabled()
        and (mask is None or _plain(mask, batch, rows, length))
    )


def _plain(mask: Tensor, batch: int, rows: int, length: int) -> bool:
    fits = mask.shape[0] in (1, batch) and mask.shape[1:] == (1, rows, length)
    return fits and mask.dtype is torch.bool and (length == 1 or mask.stride(3) == 1)
