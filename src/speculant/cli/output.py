"""Where output goes: text to stdout as it comes, everything else to stderr or to files checked beforehand."""

from __future__ import annotations

import json
import os
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.core.errors import FileError

if TYPE_CHECKING:
    from speculant.api.result import Piece, Stream

GREEN, YELLOW, RESET = "\033[32m", "\033[33m", "\033[0m"
COLORS = {"plain": "", "accepted": GREEN, "bonus": YELLOW}
LEGEND = f"colours     plain token, {GREEN}accepted draft{RESET}, {YELLOW}the target's own token after a draft{RESET}"


def say(text: str) -> None:
    """Print for the user, beside the result."""
    print(text, file=sys.stderr, flush=True)


def write_stream(stream: Stream, *, color: bool = False) -> None:
    """Print a text as it comes, and end its line whatever happens."""
    try:
        for piece in stream:
            print(painted(piece) if color else piece.text, end="", flush=True)
    finally:
        print(flush=True)


def painted(piece: Piece) -> str:
    """Return a piece's text with every token in the colour of its source."""
    tokens = zip(piece.sources, piece.texts, strict=True)
    parts = []
    for source, group in groupby(tokens, key=lambda token: token[0]):
        text = "".join(text for _, text in group)
        color = COLORS[source.value]
        parts.append(f"{color}{text}{RESET}" if color and text else text)
    return "".join(parts)


def check_writable(path: str) -> None:
    """Say before the work begins whether its result can be written.

    Raises:
        FileError: it cannot.
    """
    place, folder = Path(path), Path(path).parent
    if place.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif not os.access(place if place.exists() else folder, os.W_OK):
        reason = "permission denied"
    else:
        return
    raise FileError(f"cannot write {path}: {reason}. Name a file in a folder that exists and is writable.")


def write_json(path: str, value: Any) -> None:
    """Write JSON to a file, or to stdout for "-".

    Raises:
        FileError: the file cannot be written.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if path == "-":
        print(text, flush=True)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}.") from error
