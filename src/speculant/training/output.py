"""What a training leaves: a head in its public layout or a draft model, a model card, and the raw figures."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.core.errors import FileError, UsageError
from speculant.training.card import FIGURES, model_card
from speculant.training.checkpoints import FOLDER, state_file
from speculant.training.kind import TrainingKind

if TYPE_CHECKING:  # torch would make a folder that cannot be used known seconds later
    from torch import nn

    from speculant.drafters.heads.head import TargetParts

CARD = "README.md"


def check_output(out: Path, *, resume: bool, noun: str = "head") -> bool:
    """Check where a head or draft model, a `noun`, is to go; return whether the folder holds a state to go on from.

    Raises:
        UsageError: it holds something else, a training although none was to be gone on with, or one that is over.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file. Name a folder that does not exist yet.")
    there = {each.name for each in out.iterdir()} if out.exists() else set()
    if resume and FIGURES in there and not state_file(out).exists():
        raise UsageError(
            f"the {noun} in {out} is finished, so there is nothing to go on with. To train it further, name it by "
            "--init and another folder by --out."
        )
    if state_file(out).exists():
        if not resume:
            raise UsageError(
                f"{out} holds an unfinished training. Add --resume to go on with it, or name another folder by --out."
            )
        return True
    if there - {FOLDER}:
        what = f"a trained {noun} already" if FIGURES in there else "other files, which are not overwritten"
        raise UsageError(f"{out} holds {what}. Name another folder by --out.")
    return False


def write_head(
    out: Path, head: nn.Module, kind: TrainingKind, target: TargetParts, record: dict[str, Any], tokenizer: Any = None
) -> None:
    """Write head or draft model, card and figures; each file is written aside and renamed.

    Args:
        out: the folder.
        head: with its best weights.
        kind: of it.
        target: of it.
        record: what was trained on what, and the measurements.
        tokenizer: to be written beside it, or None.

    Raises:
        FileError: they cannot be written.
    """
    try:
        (out / FOLDER).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out / FOLDER) as name:
            aside = Path(name)
            kind.save_head(head, aside, target)
            if tokenizer is not None:
                tokenizer.save_pretrained(aside)
            (aside / CARD).write_text(model_card(kind, record), "utf-8")
            (aside / FIGURES).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
            for each in filter(Path.is_file, aside.iterdir()):
                shutil.copymode(aside / CARD, each)  # safetensors lets nobody else read what it writes
            for each in sorted(aside.iterdir(), key=lambda file: file.name == FIGURES):  # the figures say it is whole
                os.replace(each, out / each.name)
    except OSError as error:
        raise FileError(
            f"the {kind.noun} cannot be written to {out}: {error}. Make room, then go on with --resume."
        ) from error


def remove_state(out: Path) -> None:
    """Remove the state and the cache of a training that is over."""
    shutil.rmtree(out / FOLDER, ignore_errors=True)
