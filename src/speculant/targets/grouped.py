"""Attention with several query heads on one head of keys and values, without copies of these.

For a pass with a tree mask on a CPU, transformers first repeats keys and values for every query head, which takes as
long as the attention itself; PyTorch's own operation reads them where they lie and gives the same.

The function is transformers' for the whole process while a pass lasts, so it does for other threads what theirs does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

LEAST_ROWS = 3  # fewer are left to transformers, so that plain decoding stays its own to the last bit
# With any of these the attention is another one, or the call is to be refused.
OTHERS = ("softcap", "output_attentions", "position_bias", "cache", "s_aux")


@contextlib.contextmanager
def grouped_attention() -> Iterator[None]:
    """Let models with "sdpa" attention skip the copies, unless somebody has put their own function there.

    Another thread's pass may end first; then the rest of this one makes the copies.
    """
    functions = ALL_ATTENTION_FUNCTIONS
    try:
        if functions["sdpa"] is sdpa_attention_forward:
            functions["sdpa"] = attend
        yield
    finally:
        if functions["sdpa"] is attend:
            with contextlib.suppress(KeyError):  # taken away by another thread just now
                del functions["sdpa"]


def attend(
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
    fits = (
        attention_mask is not None
        and query.device.type == "cpu"
        and query.shape[2] >= LEAST_ROWS
        and getattr(module, "num_key_value_groups", 1) == query.shape[1] // key.shape[1] > 1
        and not dropout
        and not any(options.get(name) is not None for name in OTHERS)
    )
    if not fits:
        others = {"dropout": dropout, "scaling": scaling, **options}
        answer: tuple[Tensor, Any] = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
        return answer
    output = F.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2).contiguous(), None
