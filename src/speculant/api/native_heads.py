"""Heads that come with a model: MTP tensors in its own checkpoint, which transformers does not load."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from speculant.core.errors import SpeculantError, UnsupportedError
from speculant.core.hub import is_path
from speculant.drafters.heads.checkpoints.checkpoint import first_line
from speculant.drafters.heads.mtp.layouts import find_layout, is_mtp, plain_name
from speculant.drafters.heads.mtp.native import read_native, tensor_files

if TYPE_CHECKING:
    from speculant.drafters.heads.drafter import LoadedHead
    from speculant.drafters.heads.mtp.head import MtpHead
    from speculant.engines.hf.views.target_parts import HFTargetParts

ALONE = "mtp"


def find_native_head(model: Any, *, fast: bool = True) -> tuple[LoadedHead | None, tuple[str, ...]]:
    """Return the MTP head of a model's own checkpoint, and notes if it cannot be used; see `open_native_head`."""
    try:
        return open_native_head(model, fast=fast), ()
    except SpeculantError as error:
        return None, (f"The model's own MTP layers are left out, and 'mix' drafts: {first_line(error)}",)


def open_native_head(model: Any, *, fast: bool = True) -> LoadedHead | None:
    """Return the MTP head of a model's own checkpoint; None if it has none.

    Args:
        model: the target, loaded from a folder or from the hub's cache.
        fast: whether the head may use compiled code, if available.

    Raises:
        ModelNotFoundError: a file of the checkpoint is missing or damaged.
        UnsupportedError: the layout of its tensors is unknown, or they are quantised.
    """
    folder = _folder(str(getattr(model, "name_or_path", "") or ""), getattr(model.config, "_commit_hash", None))
    if folder is None:
        return None
    config, files = model.config.get_text_config(decoder=True), tensor_files(folder)
    chosen = _own_names(files, config)
    if not chosen:
        return None
    # Imported here, since most checkpoints have no head.
    from speculant.drafters.heads.drafter import LoadedHead
    from speculant.drafters.heads.mtp.checkpoint import load_native
    from speculant.engines.hf.views.target_parts import HFTargetParts

    find_layout(config.model_type, map(plain_name, chosen), config.num_hidden_layers)  # before weights are read
    target = HFTargetParts(model, fast=fast)
    try:
        head = load_native(read_native(folder, files, chosen, model.dtype), target)
        module: nn.Module = head
        module.to(device=model.device, dtype=model.dtype).eval().requires_grad_(False)
        _try(head, target, model)
    except SpeculantError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedError(f"they cannot be run: {type(error).__name__}: {first_line(error)}") from error
    note = f"The model's own MTP layers draft, read from its checkpoint: {len(head)}. The method 'mix' leaves them out."
    return LoadedHead(head, target, ALONE, ALONE, notes=(note,))


def _try(head: MtpHead, target: HFTargetParts, model: Any) -> None:
    """Run a few rows, so that a class that fails on its own is detected before a request."""
    state = head.open(0, target)
    with torch.inference_mode():
        following = torch.zeros(2, dtype=torch.long, device=model.device)
        state.extend(torch.zeros(2, 1, target.hidden_size, dtype=model.dtype, device=model.device), following)
        state.start()
        state.grow([0, 0], [-1, -1])


def ships_head(source: str, config: Any) -> bool:
    """Return whether a model's checkpoint has MTP tensors, judged by their names.

    Args:
        source: its folder or hub id.
        config: config of its text model.

    Raises:
        ModelNotFoundError: its index or a header is damaged.
    """
    folder = _folder(source, getattr(config, "_commit_hash", None))
    return folder is not None and bool(_own_names(tensor_files(folder), config))


def _own_names(names: Iterable[str], config: Any) -> set[str]:
    """Return the tensor names that belong to MTP modules."""
    layers = getattr(config, "num_hidden_layers", None)
    return {name for name in names if is_mtp(name, layers)} if layers else set()


def _folder(source: str, commit: str | None) -> Path | None:
    """Return the folder of a model's checkpoint; None if it was created in memory, or is not in the hub's cache."""
    if not source or Path(source).exists() or is_path(source):
        return Path(source) if source and Path(source).is_dir() else None
    from huggingface_hub import errors, try_to_load_from_cache

    for name in ("model.safetensors.index.json", "model.safetensors"):
        try:
            found = try_to_load_from_cache(source, name, revision=commit)
        except errors.HFValidationError:  # a name that is not a hub id
            return None
        if isinstance(found, str):
            return Path(found).parent
    return None
