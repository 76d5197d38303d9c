"""The top tokens of rows of logits, found on CPUs without PyTorch's `topk` and `argmax`.

With vocabularies of a hundred thousand tokens, these take as long for the rows of a draft as a layer. NumPy compares
many logits at a time in its `argmax`. For the k best, tokens are dealt into groups, whose
maxima are found in the same way; the k best lie in the k groups with the greatest maxima, which a compiled loop scans.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from speculant.core.tree import Float32, Int32

GROUPS = 512  # token i belongs to group i modulo GROUPS
FEW_TOKENS = 1 << 11  # up to this many logits of a row, one loop over all is faster
EXACT = (torch.float32, torch.bfloat16, torch.float16)  # dtypes that float32 can represent


def best_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return logits and ids [R, k] of each row's k best tokens, best first, as `torch.topk` of [R, V] does."""
    if not _on_host(logits):
        values, ids = logits.topk(k, dim=-1)
        return values, ids
    found = _best(logits, k)
    return torch.from_numpy(found[1]).to(logits.dtype), torch.from_numpy(found[0]).long()


def best_token(logits: Tensor) -> Tensor:
    """Return the first id [R] of each row's maximum logit, as `torch.argmax` of [R, V] does on CPUs."""
    if not _on_host(logits):
        return logits.argmax(-1)
    return torch.from_numpy(logits.detach().float().numpy().argmax(-1))


def top_on_host(logits: Tensor, k: int) -> tuple[Int32, Float32]:
    """Return ids and logits [R, k] of each row's k best tokens, best first, as host arrays.

    From an accelerator they are copied asynchronously; synchronise with the device before reading them.
    """
    k = min(k, logits.shape[-1])
    if _on_host(logits):
        return _best(logits, k)
    values, ids = logits.topk(k, dim=-1)
    on_host = ids.to(torch.int32).to("cpu", non_blocking=True), values.float().to("cpu", non_blocking=True)
    return on_host[0].numpy(), on_host[1].numpy()


def _on_host(logits: Tensor) -> bool:
    return logits.is_cpu and logits.dtype in EXACT


def _best(logits: Tensor, k: int) -> tuple[Int32, Float32]:
    """Return ids and logits [R, k] of the k <= V best tokens of logits [R, V] on the host."""
    rows = np.ascontiguousarray(logits.detach().float().numpy())  # a view would be a type of its own for numba
    count, vocabulary = rows.shape
    if k < 1 or not count:
        return np.empty((count, k), np.int32), np.empty((count, k), np.float32)
    if k == 1:  # the first of equal ones, as a greedy target chooses
        ids = rows.argmax(-1)[:, None]
        return ids.astype(np.int32), np.take_along_axis(rows, ids, -1)
    groups = 1 if vocabulary <= FEW_TOKENS or k > GROUPS else GROUPS
    if groups == 1:
        maxima = np.empty((count, 1), np.float32)
    else:
        maxima = rows[:, : vocabulary // groups * groups].reshape(count, -1, groups).max(1)
    found: tuple[Int32, Float32] = _best_of_groups(rows, maxima, k)
    return found


@njit(cache=True, nogil=True)
def _best_of_groups(logits, maxima, k):  # type: ignore[no-untyped-def]
    """Return ids Int32[R, k] and logits Float32[R, k], best first.

    Args:
        logits: Float32[R, V].
        maxima: Float32[R, G], the maximum of each group of tokens that are equal modulo G; G = 1 to scan all tokens.
        k: number of tokens.
    """
    (rows, vocabulary), groups = logits.shape, maxima.shape[1]
    ids, values = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
    chosen, greatest = np.zeros(min(k, groups), np.int32), np.empty(min(k, groups), np.float32)
    for row in range(rows):
        # 1. The groups with the greatest maxima.
        count, least = 0, np.float32(-np.inf)
        for group in range(groups if groups > 1 else 0):
            value = maxima[row, group]
            if value > least or count < len(chosen):
                count, least = _insert(chosen, greatest, count, group, value)
        # 2. The best of their tokens.
        count, least, turns = 0, np.float32(-np.inf), vocabulary // groups if groups > 1 else 0
        for turn in range(turns):
            for group in chosen:
                value = logits[row, turn * groups + group]
                if value > least or count < k:
                    count, least = _insert(ids[row], values[row], count, turn * groups + group, value)
        # 3. The best of the tokens behind the last whole turn of groups.
        for token in range(turns * groups, vocabulary):
            value = logits[row, token]
            if value > least or count < k:
                count, least = _insert(ids[row], values[row], count, token, value)
    return ids, values


@njit(cache=True, nogil=True)
def _insert(ids, values, count, token, value):  # type: ignore[no-untyped-def]
    """Insert a token into the `count` best ones, of which the last may fall out; return how many, and the least."""
    size = len(ids)
    place = count if count < size else size - 1
    while place > 0 and values[place - 1] < value:
        ids[place], values[place] = ids[place - 1], values[place - 1]
        place -= 1
    ids[place], values[place] = token, value
    count = min(count + 1, size)
    return count, values[count - 1]
