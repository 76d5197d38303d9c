"""Parsing of sizes in bytes, and the default size of a drafter's memory."""

from __future__ import annotations

import math
import re
from typing import Any

from speculant.core.errors import UsageError

MEMORY_LIMIT = 256 << 20  # default limit of a drafter's memory
MIN_MEMORY = 1 << 20
_DECIMAL = {"": 0, "b": 0, "kb": 3, "mb": 6, "gb": 9, "tb": 12}
_BINARY = {"kib": 10, "mib": 20, "gib": 30, "tib": 40}


def read_bytes(value: Any) -> int | None:
    """Parse a number of bytes given as a number or as text; return None if it is not one.

    "256MB" is decimal and "256MiB" binary, case-insensitive; a number without a unit is in bytes.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\d+)?|\.\d+)\s*([a-z]*)\s*", value.lower())
        if match is None or match[2] not in {**_DECIMAL, **_BINARY}:
            return None
        found = float(match[1]) * (10 ** _DECIMAL[match[2]] if match[2] in _DECIMAL else 1 << _BINARY[match[2]])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value)
    else:
        return None
    return int(found) if math.isfinite(found) and found >= 0 else None


def check_bytes(limit: Any, *, name: str = "memory_limit") -> int:
    """Return the limit `name` in bytes, given as a number such as 1e9 or as text such as "1GB" or "512 MiB".

    Args:
        limit: the value that the user gave.
        name: name of the setting, for the message.

    Raises:
        UsageError: the limit is not a number of bytes above 0.
    """
    found = read_bytes(limit)
    if not found:
        raise UsageError(f"{name} must be a number of bytes above 0, such as 1e9 or '1GB', not {limit!r}.")
    return found
