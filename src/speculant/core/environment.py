"""The environment variables SPECULANT_*: a misspelled one would be ignored for as long as a server runs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from speculant.core.errors import UsageError

PREFIX = "SPECULANT_"
# Read outside of settings, by every command.
ELSEWHERE = frozenset(
    {"SPECULANT_DATA", "SPECULANT_BASES", "SPECULANT_WIDTH", "SPECULANT_EMULATE_BF16", "SPECULANT_EMULATE_AMX"}
)


def check_variables(environment: Mapping[str, str], *, known: Iterable[str], what: str) -> None:
    """Check that the environment holds no SPECULANT_* that nobody reads.

    Args:
        environment: such as `os.environ`.
        known: the settings, in small letters.
        what: what a variable would be, for the message.

    Raises:
        UsageError: one is unknown; the message names the nearest one.
    """
    variables = {PREFIX + name.upper() for name in known}
    for name in environment:
        if name.upper().startswith(PREFIX) and name.upper() not in variables | ELSEWHERE:
            raise UsageError(f"the environment variable {name} is not {what}. {nearest(name.upper(), variables)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that names the likeliest of the known names, or all of them."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"Did you mean {near[0]}?" if near else f"There are {', '.join(sorted(known))}."
