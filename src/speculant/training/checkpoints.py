"""The state of an unfinished training in one file, replaced atomically, so that it is complete after any interrupt.

PyTorch is imported only when a state is read or written: commands look for a state first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from speculant.core.errors import FileError
from speculant.memory.aside import SHARED, write_aside

FOLDER, STATE = ".training", "state.pt"


def state_file(out: Path) -> Path:
    """Return the path of the state of a training into a folder."""
    return out / FOLDER / STATE


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a state of tensors, numbers and text.

    Raises:
        FileError: it cannot be written; an earlier state is kept.
    """
    import torch

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_aside(path, mode=SHARED) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:  # torch raises the latter if the disk is full
        raise FileError(
            f"the state of the training cannot be written to {path}: {error}. Make room, then go on with --resume."
        ) from error


def load_state(path: Path) -> dict[str, Any]:
    """Read a state; no code in it is run.

    Raises:
        FileError: it is damaged.
    """
    import torch

    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        found["step"], found["head"], found["about"]
    except Exception as error:  # damaged files fail in many ways; each ends here with its reason
        raise FileError(
            f"{path} is not the state of a training, or is damaged: {error}. Delete {path.parent} to train anew."
        ) from error
    return found
