"""Where a training's files are, and what it begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speculant.core.errors import UsageError

SAVED = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a training's files are.

    Attributes:
        out: the folder that gets the head or draft model.
        cache: bytes that hidden states may take on disk; 0 to compute them every time.
        cache_folder: where; None for the folder of the training's state, which is removed at its end.
        resume: whether to go on with what `out` holds.
        init: a head or draft model to begin with; None for a new one.
        options: of a new one, by name.
        like: a model whose architecture a new draft model gets; None for a small Llama.
        before: draft models whose right positions are left out (Col-BT).
        checkpoint_steps, checkpoint_minutes: between checkpoints.
        dtype: of the weights that are written: float32, bfloat16 or float16.
    """

    out: Path
    cache: int = 0
    cache_folder: Path | None = None
    resume: bool = False
    init: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    like: str | None = None
    before: tuple[str, ...] = ()
    checkpoint_steps: int | None = None
    checkpoint_minutes: float = 5.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in SAVED:
            raise UsageError(f"weights are written in {', '.join(SAVED)}, not {self.dtype!r}.")
        if self.init is not None and self.options:
            raise UsageError("options of new weights (--set) have no effect on what is given by --init.")
        if self.init is not None and self.like is not None:
            raise UsageError("--like is for new draft models and --init names a trained one; leave one of them out.")

    def start(self) -> dict[str, Any]:
        """Return what the training begins with, for a JSON file, without folders' paths."""
        if self.init is not None:
            return {"init": title(self.init)}
        return {"options": dict(self.options)} | ({} if self.like is None else {"like": title(self.like)})


def title(source: str) -> str:
    """Return what people call a model or head: a hub id, or a folder without the path to it."""
    return Path(source).resolve().name if Path(source).exists() else source
