"""PARD models for training: draft models with a mask token, and their folders.

The mask is the token that occurs least in the training texts, which are usually without some of the vocabulary's; the
authors name an unused token of each family (pard/pard_train.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from speculant.core.tree import Int64
from speculant.drafters.heads.head import TargetParts
from speculant.training.draft_model.model import load_draft_model, new_draft_model
from speculant.training.student import Student

BLOCK = 8  # tokens that a PARD model drafts at most, as in the authors' training


class PardStudent(Student):
    """A PARD model in training; see `Student`.

    Attributes:
        mask: its mask token.
    """

    depth = BLOCK

    def __init__(self, model: Any, mask: int) -> None:
        """Wrap a model and name its mask token."""
        super().__init__(model)
        self.mask = mask

    def block_states(self, ids: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """Return the last hidden states [B, n, D'] of rows that see one another as told.

        Args:
            ids: Int64[B, n].
            positions: Int64[B, n].
            seen: Bool[B, 1, n, n], rows that each may see.

        Raises:
            UnsupportedError: the model does not accept masks.
        """
        mask = self._parts.row_mask(seen, next(self.model.parameters()).dtype)
        output = self.model.base_model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False)
        found: Tensor = output.last_hidden_state
        return found


def new_pard(
    target: TargetParts,
    *,
    counts: Int64,
    like: str | None = None,
    layers: int = 0,
    hidden: int = 0,
    heads: int = 0,
    kv_heads: int = 0,
    head_dim: int = 0,
    inner: int = 0,
) -> PardStudent:
    """Return a PARD model with new weights; see `new_draft_model`.

    Args:
        target: the model that it drafts for.
        counts: frequency of each token in the texts.
        like, layers, hidden, heads, kv_heads, head_dim, inner: see `new_draft_model`.
    """
    shape = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return PardStudent(new_draft_model(target, like=like, inner=inner, **shape).model, int(counts.argmin()))


def load_pard(source: str, kind: str, target: TargetParts, tokenizer: Any, counts: Int64) -> PardStudent:
    """Return a PARD model to train further, or a draft model to adapt, in float32 on the target's device.

    Args:
        source: a folder or hub id.
        kind, target, tokenizer: see `load_draft_model`.
        counts: frequency of each token in the texts.

    Raises:
        ModelNotFoundError, UsageError: see `load_draft_model`.
    """
    model = load_draft_model(source, kind, target, tokenizer, counts).model
    mask = getattr(model.config, "pard_token", None)
    return PardStudent(model, int(counts.argmin()) if mask is None else int(mask))


def save_pard(head: nn.Module, folder: Path, _target: TargetParts) -> None:
    """Write a PARD model's configs and weights into a folder, as the authors do."""
    assert isinstance(head, PardStudent)
    head.model.config.pard_token, head.model.config.spd_type = head.mask, "pard"
    head.model.save_pretrained(folder)


def block_rows(length: int, blocks: Tensor, count: int) -> Tensor:
    """Return Bool[B, 1, n, n], the rows that each row of padded texts with blocks of masks sees.

    A text's T rows see those before them. Then come S blocks of `count` rows, which see the text up to their root, and
    the block's rows before them; rows of absent blocks see themselves.

    Args:
        length: T.
        blocks: Int64[B, S], position of each block's root; -1 for no block.
        count: rows of a block.
    """
    texts, slots = blocks.shape
    places, rows = torch.arange(length, device=blocks.device), length + slots * count
    seen = torch.zeros(texts, rows, rows, dtype=torch.bool, device=blocks.device)
    seen[:, :length, :length] = places <= places[:, None]
    seen[:, length:, :length] = (places <= blocks[..., None]).repeat_interleave(count, 1)
    own = torch.ones(count, count, device=blocks.device).tril()
    seen[:, length:, length:] = torch.kron(torch.eye(slots, device=blocks.device), own).bool()
    return seen[:, None]
