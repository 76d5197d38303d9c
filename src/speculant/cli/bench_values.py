"""Options of `speculant bench` that hold several numbers."""

from __future__ import annotations

import typer

from speculant.cli.values import temperature
from speculant.core.errors import UsageError


def temperatures(text: str) -> list[float]:
    """Return the numbers of "T,...".

    Raises:
        UsageError: they are none, or cannot be sampled at.
    """
    try:
        found = [temperature(part) for part in text.split(",") if part.strip()]
    except typer.BadParameter as error:
        raise UsageError(f"--temperature takes numbers with commas between them: each {error.message}") from None
    if not found:
        raise UsageError(f"--temperature takes numbers with commas between them, not '{text}'.")
    return list(dict.fromkeys(found))


def batches(text: str) -> list[int]:
    """Return the numbers of "N,...".

    Raises:
        UsageError: they are none, or below 1.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and int(part) for part in parts):
        raise UsageError(f"--batch takes numbers of 1 or more with commas between them, not '{text}'.")
    return list(dict.fromkeys(map(int, parts)))
