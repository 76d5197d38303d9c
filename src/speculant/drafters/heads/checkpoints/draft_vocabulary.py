"""The reduced vocabulary of a head in checkpoints: `d2t` and `t2d`.

`d2t` [V'] contains offsets, not ids: the token of logit i is i + d2t[i]. `t2d` [V] is true at these tokens. Both are
missing if a head drafts every token.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.head import TargetParts

MAPS = ("d2t", "t2d")


def read_ids(checkpoint: Checkpoint, target: TargetParts, size: int) -> Tensor | None:
    """Return the target's tokens Int64[V'] for a head's logits; None if they are all tokens in order.

    Args:
        checkpoint: checkpoint of the head.
        target: target of the head.
        size: V'.

    Raises:
        UnsupportedError: a map is missing, or contradicts the other map or the target's vocabulary.
    """
    d2t, t2d, whole = checkpoint.tensors.get("d2t"), checkpoint.tensors.get("t2d"), size == target.vocabulary
    if d2t is None:
        if not whole:
            raise UnsupportedError(
                f"the head in {checkpoint.source} drafts {size} of the target's {target.vocabulary} tokens, but lacks "
                "d2t, which lists them: the checkpoint is truncated."
            )
        return None
    if d2t.shape != (size,) or d2t.is_floating_point():
        raise UnsupportedError(
            f"the head in {checkpoint.source} has a d2t of shape {list(d2t.shape)} and type {d2t.dtype} for {size} "
            "logits; it must hold one integer per logit."
        )
    ids = torch.arange(size) + d2t.long()
    if size and (int(ids.min()) < 0 or int(ids.max()) >= target.vocabulary or len(set(ids.tolist())) < size):
        raise UnsupportedError(
            f"d2t of the head in {checkpoint.source} maps logits to equal tokens, or to tokens outside the target's "
            f"vocabulary of {target.vocabulary}. It must hold offsets, so that the token of logit i is i + d2t[i], "
            "not ids."
        )
    if t2d is not None and not _agree(t2d, ids, target.vocabulary):
        raise UnsupportedError(
            f"t2d and d2t of the head in {checkpoint.source} name different tokens: t2d must be true at the {size} "
            f"tokens i + d2t[i] of {target.vocabulary} and nowhere else."
        )
    return None if whole and bool((ids == torch.arange(size)).all()) else ids


def write_ids(ids: Tensor | None, vocabulary: int) -> Mapping[str, Tensor]:
    """Return the maps for the tokens Int64[V'] of a head's logits; empty for None."""
    if ids is None:
        return {}
    ids = ids.cpu()
    t2d = torch.zeros(vocabulary, dtype=torch.bool)
    t2d[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": t2d}


def _agree(t2d: Tensor, ids: Tensor, vocabulary: int) -> bool:
    given = t2d.bool()
    return given.shape == (vocabulary,) and int(given.sum()) == len(ids) and bool(given[ids].all())
