"""Writes generated text to standard output, each token in the colour of its source."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

from speculant.cli.terminal import say, takes_color

if TYPE_CHECKING:
    from speculant.api.result import Piece, Stream

GREEN, YELLOW, RESET = "\033[32m", "\033[33m", "\033[0m"
COLORS = {"plain": "", "accepted": GREEN, "bonus": YELLOW}


def write_stream(stream: Stream, *, color: bool = False) -> None:
    """Print a text while it is generated, and end its line in any case."""
    try:
        for piece in stream:
            print(paint(piece) if color else piece.text, end="", flush=True)
    finally:
        print(flush=True)


def paint(piece: Piece) -> str:
    """Return a piece's text with every token in the colour of its source."""
    tokens = zip(piece.sources, piece.texts, strict=True)
    parts = []
    for source, group in groupby(tokens, key=lambda token: token[0]):
        text = "".join(text for _, text in group)
        color = COLORS[source.value]
        parts.append(f"{color}{text}{RESET}" if color and text else text)
    return "".join(parts)


def can_paint(wanted: bool) -> bool:
    """Return whether text is coloured; if it was requested but standard output does not support it, print a note."""
    if wanted and not takes_color(sys.stdout):
        say("note: --color has no effect: NO_COLOR is set, or the output is not a terminal (FORCE_COLOR=1 forces it).")
    return wanted and takes_color(sys.stdout)


def legend() -> str:
    """Return an explanation of the colours, coloured if standard error supports it."""
    green, yellow, reset = (GREEN, YELLOW, RESET) if takes_color(sys.stderr) else ("", "", "")
    words = "" if green else " (green)", "" if yellow else " (yellow)"
    return f"colours     plain token, {green}accepted draft{reset}{words[0]}, {yellow}bonus token{reset}{words[1]}"
