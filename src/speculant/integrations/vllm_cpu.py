"""Repairs vLLM's sampling of drafted tokens on CPUs.

If Triton has no CPU backend, vLLM replaces the kernel that repeats each request's temperature, top-k and top-p for its
drafted tokens by C++ code for Int64. The replacement converts the output, which is not Int64, fills the converted copy
and drops it, so the output remains uninitialised memory (vllm/utils/cpu_triton_utils.py, `_expand_kernel_impl`; 0.32.0
and 0.33.0). Every sampled request with drafts, and every greedy one in the same batch, is then decoded with random
parameters. This also affects vLLM's own drafters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from speculant.core.errors import UnsupportedError

logger = logging.getLogger(__name__)


def repair_expansion() -> bool:
    """Replace the function on CPUs if it does not work, in this process; return whether it was replaced.

    Raises:
        UnsupportedError: the repair has no effect.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    from vllm.v1.sample import rejection_sampler

    if expands(rejection_sampler.expand_batch_to_tokens):
        return False
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    if not expands(rejection_sampler.expand_batch_to_tokens):
        raise UnsupportedError(
            "sampling with drafts is broken in this vLLM on CPUs and could not be repaired. Use another version."
        )
    logger.warning(
        "vLLM's expand_batch_to_tokens leaves sampling parameters uninitialised on this CPU; it was replaced, so that "
        "sampling with drafts is lossless."
    )
    return True


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """Return [num_tokens], x[i] repeated cu_num_tokens[i] - cu_num_tokens[i - 1] times; signature as in vLLM.

    Args:
        x: [B], of any dtype.
        cu_num_tokens: Int[B], cumulative counts.
        num_tokens: the last of them.
        replace_from, replace_to: a value of x, and its replacement in the result.
    """
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return replaced.repeat_interleave(counts.to(torch.int64), output_size=num_tokens)


def expands(expand: Callable[..., Any]) -> bool:
    """Return whether a function behaves like `expand_batch_to_tokens`, for the dtypes that vLLM passes."""
    import torch

    ends = torch.tensor([2, 3, 6], dtype=torch.int32)
    for dtype in (torch.float32, torch.int32):
        x = torch.tensor([0, 17, 23], dtype=dtype)
        for start, stop in ((0, 1), (17, 31)):  # twice, so that uninitialised memory cannot be correct by chance
            found = expand(x, ends, 6, replace_from=start, replace_to=stop)
            chosen = [stop if value == start else value for value in x.tolist()]
            if found.tolist() != [chosen[0]] * 2 + [chosen[1]] + [chosen[2]] * 3:
                return False
    return True
