"""Text from users: truth values, and the beginning of a text for a message."""

from __future__ import annotations

from typing import Any

_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def read_truth(value: Any) -> bool | None:
    """Return the truth value that a text means; None if it means none."""
    return value if isinstance(value, bool) else _TRUTH.get(str(value).strip().lower())


def shorten(value: Any, width: int = 40) -> str:
    """Return the beginning of a value, for a message."""
    whole_text = str(value)
    return whole_text if len(whole_text) <= width else whole_text[: width - 3] + "..."
