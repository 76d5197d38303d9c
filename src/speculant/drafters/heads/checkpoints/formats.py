"""The table of checkpoint formats; the first that matches loads a head."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from speculant.core.errors import SpeculantError, UnsupportedError
from speculant.core.references import load_object
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint, first_line, read_checkpoint
from speculant.drafters.heads.checkpoints.fitting import check_decoder
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.head import Head, TargetParts
from speculant.drafters.heads.kinds import HEAD_KINDS


@dataclass(frozen=True, slots=True)
class Format:
    """A public layout of checkpoints.

    Attributes:
        name: description, for messages.
        kind: kind of the heads' architecture, as named in `Method.heads`.
        method: method that drafts with them alone.
        matches: recognises such checkpoints by config and tensor names.
        load: returns the head; raises UnsupportedError if it does not fit its target.
        decoder_only: see `HeadKind`.
    """

    name: str
    kind: str
    method: str
    matches: Callable[[Checkpoint], bool]
    load: Callable[[Checkpoint, TargetParts], Head]
    decoder_only: str = ""


FORMATS = tuple(
    Format(each.name, kind.name, each.method, load_object(each.matches), load_object(each.load), kind.decoder_only)
    for kind in HEAD_KINDS
    for each in kind.layouts
)


def find_format(checkpoint: Checkpoint) -> Format:
    """Return the format of a checkpoint.

    Raises:
        UnsupportedError: the format is unknown.
    """
    for each in FORMATS:
        if each.matches(checkpoint):
            return each
    some = ", ".join(sorted(checkpoint.tensors)[:4])
    raise UnsupportedError(
        f"the head in {checkpoint.source} has no known format: its weights are named {some}, ... Known formats are "
        f"{', '.join(each.name for each in FORMATS)}."
    )


def check_sizes(checkpoint: Checkpoint, *, hidden_size: int, vocabulary: int, layers: int) -> None:
    """Check by its sizes alone that a head fits a target, before the target is loaded.

    The head is built on the meta device; if that needs any other part of the target, the check ends there.

    Raises:
        UnsupportedError: it was trained for another target, or its format is unknown.
    """
    sizes: Any = SimpleNamespace(hidden_size=hidden_size, vocabulary=vocabulary, layers=layers)
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("error")  # about weights that are not copied
            find_format(checkpoint).load(checkpoint, sizes)
    except UnsupportedError:
        raise
    except Exception:  # accessing anything but sizes may raise any error, which ends the check
        return


def load_head(source: str | Path | Checkpoint, target: TargetParts) -> LoadedHead:
    """Load a head for a target.

    Args:
        source: a folder, a hub id, or a checkpoint that has been read.
        target: the parts of the target that heads use.

    Raises:
        ModelNotFoundError: there is no such checkpoint, or it is damaged.
        UnsupportedError: its format is unknown, or it belongs to another target; the message says what differs.
    """
    checkpoint = source if isinstance(source, Checkpoint) else read_checkpoint(source)
    found = find_format(checkpoint)
    check_decoder(f"heads of kind {found.kind}", found.decoder_only, target)
    try:
        head = found.load(checkpoint, target)
    except SpeculantError:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:  # caused by unforeseen values
        raise UnsupportedError(
            f"the head in {checkpoint.source} of format {found.name} cannot be built from its config.json and "
            f"weights: {first_line(error)} It may be damaged, or its format is not supported."
        ) from error
    return LoadedHead(head, target, found.kind, found.method)
