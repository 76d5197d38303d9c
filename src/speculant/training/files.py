"""The files and starting point of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from speculant.core.errors import UsageError
from speculant.core.hub import title
from speculant.options import kinds, option

SAVED = ("float32", "bfloat16", "float16")

_option = partial(option.option, panel="Files")
_draft_model = partial(option.option, panel="Draft model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files of a training.

    Attributes:
        out: output folder for the head or draft model.
        cache: maximum bytes of hidden states on disk; 0 to compute them every time.
        cache_folder: folder for them; None for that of the training's state, which is removed at its end.
        resume: whether to continue the training in `out`.
        init: a head or draft model to start from; None for a new one.
        options: options of a new one, by name.
        like: a model whose architecture a new draft model gets; None for a small Llama.
        before: draft models whose correctly drafted positions are skipped (Col-BT).
        checkpoint_steps, checkpoint_minutes: interval between checkpoints.
        dtype: dtype of the written weights: float32, bfloat16 or float16.
    """

    out: Path = _option(option.REQUIRED, "output folder", kinds.folder())
    cache: int = _option(
        0,
        "disk space for the target's hidden states, as in 2GB; default: 0, which computes them every time",
        kinds.size(min=0, none=True),
    )
    cache_folder: Path | None = _option(
        None,
        "folder that keeps them for other trainings; default: in --out, until the end",
        kinds.folder(),
        flag="--cache-dir",
    )
    resume: bool = _option(False, "continue the training in DIR", kinds.FLAG)
    init: str | None = _option(
        None, "head or draft model to start from; default: new weights", kinds.name(metavar="PATH|ID")
    )
    options: Mapping[str, Any] = field(default_factory=dict)
    like: str | None = _draft_model(
        None,
        "config for a new model, which gets the target's vocabulary; default: a small Llama",
        kinds.name(metavar="PATH|ID"),
    )
    before: tuple[str, ...] = _draft_model(
        (),
        "draft models that it will complement: learn only where they are wrong (Col-BT, for specinfer)",
        kinds.name(metavar="PATH|ID..."),
        several=True,
    )
    checkpoint_steps: int | None = _option(None, "steps between checkpoints; default: by the clock", kinds.whole(1))
    checkpoint_minutes: float = _option(
        5.0, "minutes between checkpoints; default: 5", kinds.number(above=True, metavar="M")
    )
    dtype: str = _option(
        "float32",
        "dtype of the written weights: float32, bfloat16 or float16",
        kinds.name(),
        flag="--save-dtype",
    )

    def __post_init__(self) -> None:
        if self.dtype not in SAVED:
            raise UsageError(f"weights are written in {', '.join(SAVED)}, not {self.dtype!r}.")
        if self.init is not None and self.options:
            raise UsageError("options of new weights (--set) have no effect on what is given by --init.")
        if self.init is not None and self.like is not None:
            raise UsageError("--like is for new draft models and --init names a trained one; leave one of them out.")

    def start(self) -> dict[str, Any]:
        """Return the starting point of the training for a JSON file, without folder paths."""
        if self.init is not None:
            return {"init": title(self.init)}
        return {"options": dict(self.options)} | ({} if self.like is None else {"like": title(self.like)})
