"""The output of a training: a head in its public layout or a draft model, a model card, and the raw figures."""

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

if TYPE_CHECKING:  # importing torch would delay the report of an unusable folder by seconds
    from torch import nn

    from speculant.drafters.heads.head import TargetParts

CARD, TUNED = "README.md", "model"


def check_output(out: Path, *, resume: bool, noun: str = "head") -> bool:
    """Check the output folder of a head or draft model (`noun`); return whether it holds a state to resume.

    Raises:
        UsageError: it holds something else, a finished training, or an unfinished one without `resume`.
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
    out: Path,
    head: nn.Module,
    kind: TrainingKind,
    target: TargetParts,
    record: dict[str, Any],
    tokenizer: Any = None,
    tuned: Any = None,
) -> None:
    """Write a head or draft model with card and figures; each file is replaced atomically.

    Args:
        out: the folder.
        head: the head with its best weights.
        kind: kind of the head.
        target: target of the head.
        record: training data, settings and measurements.
        tokenizer: tokenizer to write with a model, or None.
        tuned: the model that was trained together with the head, written into a folder of its own, or None.

    Raises:
        FileError: they cannot be written.
    """
    try:
        (out / FOLDER).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out / FOLDER) as name:
            aside = Path(name)
            kind.save_head(head, aside, target)
            if tuned is not None:
                tuned.save_pretrained(aside / TUNED)
                shutil.rmtree(out / TUNED, ignore_errors=True)
            if tokenizer is not None and (tuned is not None or kind.draft_model):
                tokenizer.save_pretrained(aside / TUNED if tuned is not None else aside)
            (aside / CARD).write_text(model_card(kind, record), "utf-8")
            (aside / FIGURES).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
            for each in filter(Path.is_file, aside.rglob("*")):
                shutil.copymode(aside / CARD, each)  # safetensors restricts its files to the owner
            for each in sorted(aside.iterdir(), key=lambda file: file.name == FIGURES):  # figures mark completion
                os.replace(each, out / each.name)
    except OSError as error:
        raise FileError(
            f"the {kind.noun} cannot be written to {out}: {error}. Make room, then go on with --resume."
        ) from error


def remove_state(out: Path) -> None:
    """Remove the state and the cache of a finished training."""
    shutil.rmtree(out / FOLDER, ignore_errors=True)
