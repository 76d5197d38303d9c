"""Loads heads and checks them against their target, including the bundled ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from speculant.api.loading import bundled_heads, is_bundled
from speculant.api.native_heads import ALONE, open_native_head
from speculant.api.pard import open_pard
from speculant.core.errors import UsageError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, find_folder, read_config
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.pard.checkpoint import is_pard
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.registry import Method


def open_head(head: Any, model: Any, *, fast: bool = True) -> LoadedHead:
    """Return a head on its target, in the target's dtype and on its device.

    Args:
        head: a folder, a hub id, a loaded checkpoint, or a result of this function for the same target.
        model: the target.
        fast: whether the head may use compiled code, if available.

    Raises:
        ModelNotFoundError: there is no such checkpoint, or it is damaged.
        UnsupportedError: its format is unknown, or it belongs to another target.
        UsageError: `head` is something else, or was opened for another model.
    """
    parts = HFTargetParts(model, fast=fast)
    if isinstance(head, LoadedHead):
        if not isinstance(head.target, HFTargetParts) or not head.target.same_model(parts):
            raise UsageError("the head was opened for another model; open it for this one: `open_head(path, model)`.")
        return head if head.target.fast is fast else replace(head, target=parts)
    if not isinstance(head, str | Path | Checkpoint) or not head:
        raise UsageError(f"head must be a folder, a hub id or what `open_head` returned, not {head!r:.60}.")
    source = head.source if isinstance(head, Checkpoint) else find_folder(head)
    if is_pard(head.config if isinstance(head, Checkpoint) else read_config(Path(source))):
        return open_pard(find_folder(source), model)
    loaded = load_head(head, parts)
    if isinstance(loaded.head, nn.Module):
        loaded.head.to(device=model.device, dtype=model.dtype).eval().requires_grad_(False)
    return loaded


def own_head(method: Method, model: Any, *, fast: bool = True) -> LoadedHead | None:
    """Return the head that comes with a target for a method: MTP layers, or a bundled head.

    Raises:
        ModelNotFoundError, UnsupportedError: the target's MTP layers cannot be used; see `open_native_head`.
    """
    if ALONE in method.heads or "*" in method.heads:
        native = open_native_head(model, fast=fast)
        if native is not None:
            return native
    if not (source := model.name_or_path) or not is_bundled(source):
        return None
    for folder in bundled_heads():
        loaded = open_head(folder, model, fast=fast)
        if loaded.kind in method.heads or "*" in method.heads:
            return loaded
    return None
