"""Parsers of option values; each refuses a value with a message that says what is accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import typer

from speculant.core.errors import UsageError

LARGEST = 2**63 - 1
MOST_NODES = 1024
LEAST_BUDGET = 64_000
LEAST_TEMPERATURE = 1e-5  # below it logits divided by the temperature leave the range of float16 and then of float32


def whole(least: int, most: int = LARGEST, *, why: str = "", unit: str = "") -> Callable[[Any], int]:
    """Return a parser of whole numbers from `least` to `most`.

    Args:
        least, most: the bounds, both included.
        why: appended to the message about numbers above `most`.
        unit: of the numbers, as in " megabytes", for who gives another.
    """

    def parse(value: Any) -> int:
        text = str(value)
        try:
            number = int(text)
        except ValueError:
            wanted = f"a whole number of{unit}, {least} or more" if unit else f"a whole number of {least} or more"
            raise typer.BadParameter(f"must be {wanted}, not '{shortened(text)}'.") from None
        if number < least:
            raise typer.BadParameter(f"must be {least} or more, not {shortened(text)}.")
        if number > most:
            raise typer.BadParameter(f"must be at most {most}, not {shortened(text)}{why}.")
        return number

    return parse


def node_limit(least: int = 0) -> Callable[[Any], int]:
    """Return a parser of the number of nodes a draft may have."""
    why = ": a pass over that many tokens costs far more than a draft can gain, and takes minutes to draft"
    return whole(least, MOST_NODES, why=why)


def node_limits(value: Any) -> tuple[int, ...]:
    """Parse "N,...", each as `node_limit` does; doubles are dropped."""
    parts = [part.strip() for part in str(value).split(",") if part.strip()]
    if not parts:
        raise typer.BadParameter("must be one or more whole numbers with commas between them.")
    return tuple(dict.fromkeys(map(node_limit(), parts)))


def node_count(value: Any) -> int | str:
    """Parse how many nodes a draft may have: a number, or "auto"."""
    if str(value) == "auto":
        return "auto"
    try:
        int(str(value))
    except ValueError:
        raise typer.BadParameter(f"must be a whole number of 0 or more, or auto, not '{shortened(value)}'.") from None
    return node_limit()(value)


def share(value: Any) -> float:
    """Parse a number above 0 and up to 1; transformers ignores larger ones without a word."""
    number = _number(value)
    if not 0 < number <= 1:
        raise typer.BadParameter(f"must be above 0 and at most 1, not {shortened(value)}.")
    return number


def positive(value: Any) -> float:
    """Parse a finite number above 0."""
    number = _number(value)
    if not math.isfinite(number) or number <= 0:
        raise typer.BadParameter(f"must be a finite number above 0, not {shortened(value)}.")
    return number


def nonnegative(value: Any) -> float:
    """Parse a finite number of 0 or more."""
    number = _number(value)
    if not math.isfinite(number) or number < 0:
        raise typer.BadParameter(f"must be a finite number of 0 or more, not {shortened(value)}.")
    return number


def byte_count(value: Any) -> int:
    """Parse a number of bytes, as in 2GB or 500MB; 0 for none."""
    from speculant.api.options import check_bytes

    try:
        return check_bytes(str(value), least=0)
    except UsageError:
        message = f"must be a number of bytes as in 2GB or 500MB, not '{shortened(value)}'."
        raise typer.BadParameter(message) from None


def base_budget(value: Any) -> int:
    """Parse the size of a base in bytes: large enough for a header and some contexts."""
    number = byte_count(value)
    if number < LEAST_BUDGET:
        raise typer.BadParameter(f"must be at least 64KB, not {shortened(value)}.")
    return number


def temperature(value: Any) -> float:
    """Parse a sampling temperature: 0 for greedy, else a finite number that logits can be divided by."""
    number = _number(value)
    if not math.isfinite(number) or number < 0:
        raise typer.BadParameter(f"must be 0, for greedy decoding, or a finite number above 0, not {shortened(value)}.")
    if 0 < number < LEAST_TEMPERATURE:
        raise typer.BadParameter(
            f"must be 0 or at least {LEAST_TEMPERATURE:g}, not {shortened(value)}: dividing by less overflows. "
            "Use 0 for greedy decoding."
        )
    return number


def nonempty(what: str) -> Callable[[Any], str]:
    """Return a parser that refuses an empty text, with what it would mean."""

    def parse(value: Any) -> str:
        if not str(value):
            raise typer.BadParameter(f"is empty: {what}.")
        return str(value)

    return parse


def shortened(value: Any, width: int = 40) -> str:
    """Return the beginning of a value, for a message."""
    text = str(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def _number(value: Any) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise typer.BadParameter(f"must be a number, not '{shortened(value)}'.") from None
