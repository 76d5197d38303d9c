"""Kinds of values, each read in one way wherever it is given: as a flag, a variable, a line of a file or a keyword.

Readers take text, or the value that a file's format has for it, and raise ValueError with a message that begins with
"must be"; whoever calls them puts the option's name in front.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from speculant.core.byte_size import MIN_MEMORY, read_bytes
from speculant.core.user_text import read_truth, shorten

MAX_WHOLE = 2**63 - 1
MAX_NODES = 1024
MIN_TEMPERATURE = 1e-5  # logits divided by less leave the range of float16, and then of float32
MAX_SECONDS = 10_000_000  # four months; timers cannot wait for ever


@dataclass(frozen=True, slots=True)
class ValueKind:
    """One kind of value.

    Attributes:
        metavar: what stands for a value in help; "" for a flag.
        read: returns the value that a text or a value of a file's format means.
        complete: returns values for shell completion that begin with a text; None for none.
    """

    metavar: str
    read: Callable[[Any], Any]
    complete: Callable[[str], list[str]] | None = None


def whole(min: int, max: int = MAX_WHOLE, *, metavar: str = "N", why: str = "") -> ValueKind:
    """Return the kind of whole numbers from `min` to `max`; `why` explains the upper bound in its message."""

    def read(value: Any) -> int:
        try:
            number = int(str(value))
        except ValueError:
            raise ValueError(f"must be a whole number of {min} or more, not '{shorten(value)}'.") from None
        if number < min:
            raise ValueError(f"must be {min} or more, not {shorten(value)}.")
        if number > max:
            raise ValueError(f"must be at most {max}, not {shorten(value)}{why}.")
        return number

    return ValueKind(metavar, read)


def number(
    min: float = 0, max: float = math.inf, *, above: bool = False, metavar: str = "X", instead: str = ""
) -> ValueKind:
    """Return the kind of finite numbers from `min`, or above it, to `max`.

    Args:
        min, max: bounds.
        above: whether `min` itself is excluded.
        metavar: what stands for one in help.
        instead: what to say in place of the bounds.
    """
    bounds = f"above {min:g}" if above else f"of {min:g} or more"
    bounds = instead or (f"a finite number {bounds}" if max == math.inf else f"{bounds} and at most {max:g}")

    def read(value: Any) -> float:
        found = _float(value)
        if not math.isfinite(found) or found > max or found < min or (above and found == min):
            raise ValueError(f"must be {bounds}, not {shorten(value)}.")
        return found

    return ValueKind(metavar, read)


def seconds(metavar: str = "S") -> ValueKind:
    """Return the kind of times in seconds, above 0 and at most four months."""
    return number(0, MAX_SECONDS, above=True, metavar=metavar)


def size(*, min: int = MIN_MEMORY, none: bool = False, example: str = "256MiB", metavar: str = "SIZE") -> ValueKind:
    """Return the kind of sizes in bytes: "256MiB" is binary, "256MB" decimal, a number without a unit bytes.

    Args:
        min: smallest size in bytes.
        none: whether 0 is allowed, which stands for none.
        example: what to write, for the message.
        metavar: what stands for one in help.
    """

    def read(value: Any) -> int:
        found = read_bytes(value)
        if found is None:
            raise ValueError(f"must be a number of bytes, as in 2GB or {example}, not '{shorten(value)}'.")
        if found < min and not (none and not found):
            raise ValueError(
                f"must be at least {_bytes_text(min)}, not {shorten(value)}; a number without a unit is bytes: "
                f"write {example}."
            )
        return found

    return ValueKind(metavar, read)


def text(empty: str, *, metavar: str = "TEXT", complete: Callable[[str], list[str]] | None = None) -> ValueKind:
    """Return the kind of texts that are not empty; `empty` says what to do instead of giving an empty one."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"must be text, not {value!r}.")
        if not value:
            raise ValueError(f"is empty: {empty}.")
        return value

    return ValueKind(metavar, read, complete)


def name(known: Callable[[], Sequence[str]] | None = None, *, metavar: str = "NAME") -> ValueKind:
    """Return the kind of names; `known` returns those that shells complete, not all that are allowed."""
    complete = None if known is None else (lambda incomplete: [each for each in known() if each.startswith(incomplete)])
    return ValueKind(metavar, str, complete)


def named(what: str, *, metavar: str) -> ValueKind:
    """Return the kind of texts NAME=VALUE, of which neither part is empty; `what` says what the value names."""

    def read(value: Any) -> str:
        name, _, place = value.partition("=") if isinstance(value, str) else ("", "", "")
        if not name.strip() or not place.strip():
            raise ValueError(f"must be {metavar}, a name and {what}, not '{shorten(value)}'.")
        return f"{name.strip()}={place.strip()}"

    return ValueKind(metavar, read)


def folder() -> ValueKind:
    """Return the kind of folders."""
    return ValueKind("DIR", _read_path)


def choice(*allowed: str, metavar: str = "NAME") -> ValueKind:
    """Return the kind of values that are one of some names."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"must be {' or '.join(allowed)}, not {value!r}.")
        return str(value)

    return ValueKind(metavar, read, lambda incomplete: [each for each in allowed if each.startswith(incomplete)])


def member(members: type[Enum], *, metavar: str = "NAME") -> ValueKind:
    """Return the kind of members of an enumeration, which are given by their values."""
    values = [str(each.value) for each in members]

    def read(value: Any) -> Enum:
        try:
            return members(value)
        except ValueError:
            raise ValueError(f"{value!r} is not one of {', '.join(map(repr, values))}.") from None

    return ValueKind(metavar, read, lambda incomplete: [each for each in values if each.startswith(incomplete)])


def comma_separated(kind: ValueKind) -> ValueKind:
    """Return the kind of one or more values with commas between them, as a tuple without repetitions."""

    def read(value: Any) -> tuple[Any, ...]:
        given = value if isinstance(value, list | tuple) else str(value).split(",")
        parts = [each for each in given if str(each).strip()]
        if not parts:
            raise ValueError("must be one or more comma-separated values.")
        return tuple(dict.fromkeys(kind.read(each.strip() if isinstance(each, str) else each) for each in parts))

    return ValueKind(f"{kind.metavar},...", read)


def _read_flag(value: Any) -> bool:
    found = read_truth(value)
    if found is None:
        raise ValueError(f"must be true or false (1 or 0), not {shorten(value)!r}.")
    return found


def _read_nodes(value: Any) -> int | str:
    if str(value) == "auto":
        return "auto"
    try:
        int(str(value))
    except ValueError:
        raise ValueError(f"must be a whole number of 0 or more, or auto, not '{shorten(value)}'.") from None
    found: int = NODE_LIMIT.read(value)
    return found


def read_temperature(value: Any) -> float:
    """Return a temperature; one that is too small to divide logits by means greedy decoding, as in vLLM."""
    found = _float(value)
    if not math.isfinite(found) or found < 0:
        raise ValueError(f"must be 0, for greedy decoding, or a finite number above 0, not {shorten(value)}.")
    return 0.0 if found < MIN_TEMPERATURE else found


def _read_path(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"must be a path, not {value!r}.")
    if not str(value):
        raise ValueError("is empty: name a file, or leave the option out.")
    return Path(value).expanduser()


FLAG = ValueKind("", _read_flag)
NODE_LIMIT = whole(0, MAX_NODES, why=": a pass over so many tokens costs far more than a draft can gain")
NODES = ValueKind("N|auto", _read_nodes)
TEMPERATURE = ValueKind("T", read_temperature)
FRACTION = number(0, 1, above=True, metavar="P")
PATH = ValueKind("FILE", _read_path)
FILE_NAME = name(metavar="FILE")  # as it was written: "-" may stand for a standard stream
MODEL = text("name a folder or a hub id, or leave the option out", metavar="PATH|ID")


def read_list(value: Any) -> list[str]:
    """Return the items of a list that a variable or a file holds: as a list, or as text with commas between them."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return list(value)
    raise ValueError(f"must be a list, or comma-separated text, not {value!r}.")


def _float(value: Any) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ValueError(f"must be a number, not '{shorten(value)}'.") from None


def _bytes_text(count: int) -> str:
    return f"{count >> 20}MiB" if count >= 1 << 20 and not count % (1 << 20) else f"{count} bytes"
