"""Images and recordings placed before a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from speculant.core.errors import FileError


def read_media(images: Sequence[str] | None, recordings: Sequence[str] | None) -> tuple[dict[str, str], ...]:
    """Return the parts of a chat message; see `api.media_prompts`.

    Raises:
        FileError: there is no such file. Nothing is loaded to check this.
    """
    named = [("image", name) for name in images or ()] + [("audio", name) for name in recordings or ()]
    for kind, name in named:
        if not Path(name).is_file():
            raise FileError(f"--{kind}: there is no file {name}.")
    return tuple({"type": kind, kind: name} for kind, name in named)
