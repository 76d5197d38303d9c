"""The top tokens of rows of logits, found block by block in the vocabulary.

PyTorch's `topk` and `argmax` scan every logit on CPUs; with vocabularies beyond a hundred thousand tokens, that takes
about as long as a layer for the rows of a draft. Block maxima are cheap, and the k best tokens lie in the k blocks with
the greatest maxima. Elsewhere, and for small vocabularies, PyTorch's own operations are used, except where the result
is wanted on the host: a compiled loop over a few thousand logits takes far less time than `topk`.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from speculant.core.tree import Float32, Int32

BLOCK = 128
FEW = 32  # up to this many blocks, one operation is faster than several
FEW_TOKENS = 1 << 15  # up to this many logits of a row, one loop is faster than operations on blocks


def best_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return logits and ids [R, k] of each row's k best tokens, best first, as `torch.topk` of [R, V] does."""
    rows, vocabulary = logits.shape
    blocks = vocabulary // BLOCK
    if blocks <= max(FEW, 2 * k) or not logits.is_cpu:
        values, ids = logits.topk(k, dim=-1)
        return values, ids
    apart = logits[:, : blocks * BLOCK].reshape(rows, blocks, BLOCK)
    which = apart.amax(-1).topk(k, dim=-1).indices
    inside = apart.gather(1, which[:, :, None].expand(rows, k, BLOCK)).flatten(1)
    tail = logits[:, blocks * BLOCK :]
    values, found = torch.cat((inside, tail), dim=1).topk(k, dim=-1)
    in_tail = found >= k * BLOCK
    block = which.gather(1, (found // BLOCK).clamp(max=k - 1))
    return values, torch.where(in_tail, found - k * BLOCK + blocks * BLOCK, block * BLOCK + found % BLOCK)


def best_token(logits: Tensor) -> Tensor:
    """Return the first id [R] of each row's maximum logit, as `torch.argmax` of [R, V] does on CPUs."""
    rows, vocabulary = logits.shape
    blocks = vocabulary // BLOCK
    if blocks <= FEW or not logits.is_cpu:
        return logits.argmax(-1)
    apart = logits[:, : blocks * BLOCK].reshape(rows, blocks, BLOCK)
    which = apart.amax(-1).argmax(-1)
    inside = apart[torch.arange(rows), which]
    places = torch.cat((inside, logits[:, blocks * BLOCK :]), dim=1).argmax(-1)
    return torch.where(places < BLOCK, which * BLOCK + places, (blocks - 1) * BLOCK + places)


def top_on_host(logits: Tensor, k: int) -> tuple[Int32, Float32]:
    """Return ids and logits [R, k] of each row's k best tokens, best first, as host arrays.

    From an accelerator they are copied asynchronously; synchronise with the device before reading them.
    """
    k, vocabulary = min(k, logits.shape[-1]), logits.shape[-1]
    if logits.is_cpu and vocabulary < FEW_TOKENS and logits.dtype == torch.float32:
        rows = np.ascontiguousarray(logits.detach().numpy())  # a view would be a type of its own for numba
        found: tuple[Int32, Float32] = _best_of_few(rows, k)
        return found
    values, ids = best_tokens(logits, k)
    on_host = ids.to(torch.int32).to("cpu", non_blocking=True), values.float().to("cpu", non_blocking=True)
    return on_host[0].numpy(), on_host[1].numpy()


@njit(cache=True, nogil=True)
def _best_of_few(logits, k):  # type: ignore[no-untyped-def]
    rows, vocabulary = logits.shape
    ids, values = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
    for row in range(rows):
        count, least = 0, np.float32(-np.inf)
        for token in range(vocabulary):
            value = logits[row, token]
            if count == k and not value > least:
                continue
            place = count if count < k else k - 1
            while place > 0 and values[row, place - 1] < value:
                ids[row, place], values[row, place] = ids[row, place - 1], values[row, place - 1]
                place -= 1
            ids[row, place], values[row, place] = token, value
            count = min(count + 1, k)
            least = values[row, count - 1]
    return ids, values
