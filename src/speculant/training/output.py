"""What a training leaves: the head in its public layout, a model card, and the raw figures."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from speculant.core.errors import FileError, UsageError
from speculant.drafters.heads.head import TargetParts
from speculant.training.checkpoints import FOLDER, state_file
from speculant.training.kinds import Kind

FIGURES, CARD = "training.json", "README.md"


def check_output(out: Path, *, resume: bool) -> bool:
    """Check where a head is to go; return whether the folder holds a state to go on from.

    Raises:
        UsageError: it holds something else, or a training although none was to be gone on with.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file. Name a folder that does not exist yet.")
    there = {each.name for each in out.iterdir()} if out.exists() else set()
    if state_file(out).exists():
        if not resume:
            raise UsageError(
                f"{out} holds an unfinished training. Add --resume to go on with it, or name another folder by --out."
            )
        return True
    if there - {FOLDER}:
        what = "a trained head already" if FIGURES in there else "other files, which are not overwritten"
        raise UsageError(f"{out} holds {what}. Name another folder by --out.")
    return False


def finished(out: Path) -> bool:
    """Whether a folder holds a head whose training is over."""
    return (out / FIGURES).exists() and not state_file(out).exists()


def write_head(out: Path, head: nn.Module, kind: Kind, target: TargetParts, record: dict[str, Any]) -> None:
    """Write head, card and figures; each file is written aside and renamed.

    Args:
        out: the folder.
        head: with its best weights.
        kind: of it.
        target: of it.
        record: what was trained on what, and the measurements.

    Raises:
        FileError: they cannot be written.
    """
    try:
        (out / FOLDER).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out / FOLDER) as name:
            aside = Path(name)
            kind.save_head(head, aside, target)
            (aside / CARD).write_text(model_card(kind, record), "utf-8")
            (aside / FIGURES).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
            for each in aside.iterdir():
                shutil.copymode(aside / CARD, each)  # safetensors lets nobody else read what it writes
            for each in sorted(aside.iterdir(), key=lambda file: file.name == FIGURES):  # the figures say it is whole
                os.replace(each, out / each.name)
    except OSError as error:
        raise FileError(
            f"the head cannot be written to {out}: {error}. Make room, then go on with --resume."
        ) from error


def remove_state(out: Path) -> None:
    """Remove the state and the cache of a training that is over."""
    shutil.rmtree(out / FOLDER, ignore_errors=True)


def model_card(kind: Kind, record: dict[str, Any]) -> str:
    """Return a head's README.md."""
    target, settings, best = record["target"], record["settings"], record["best"]
    weight = f" + {settings['feature_weight']:g} of the distance of hidden states" if settings["feature_weight"] else ""
    depths = "\n".join(
        f"| {depth} | {agreed:.3f} | {shared:.3f} |"
        for depth, (agreed, shared) in enumerate(zip(best["agreement"], best["overlap"], strict=True), start=1)
    )
    return f"""---
library_name: speculant
tags: [speculative-decoding, {kind.name}]
---

# A drafting head of kind {kind.name} for {target["name"]}

Drafts tokens for {target["name"]} from its hidden states. The target's output stays as it is; only its speed changes.
Method: {kind.source}.

```
speculant generate "..." --model {target["source"]} --head THIS_FOLDER
```

## Training

| | |
|---|---|
| target | {target["name"]}, weights {target["model"]}, tokenizer {target["tokenizer"]} |
| parameters | {record["parameters"]:,} |
| data | {"; ".join(record["data"])} |
| loss | {settings["loss"]}{weight}, {settings["depth"]} depths, weights {settings["decay"]:g}^(depth - 1) |
| optimizer | {settings["optimizer"]}, learning rate {settings["lr"]:g}, {settings["schedule"]} decay |
| steps | {record["steps"]:,} of {settings["texts"] * settings["accumulate"] * record["workers"]} texts; these are the \
weights of step {best["step"]:,}, the best by held-out acceptance |
| time | {record["seconds"] / 60:.1f} minutes on {record["device"]} |

## Held-out acceptance

{best["anchors"]:,} positions of {record["held_out"]} texts that were not trained on. A chain of \
{len(best["agreement"])} tokens gives {best["greedy"]:.2f} tokens a round in greedy decoding and {best["sampled"]:.2f} \
at temperature 1, estimated from these texts.

| depth | head and target agree | 1 - total variation |
|---|---|---|
{depths}

Raw figures: `{FIGURES}`. Made with Speculant.
"""
