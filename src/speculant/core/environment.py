"""Check of the SPECULANT_* environment variables: a misspelled one would be silently ignored."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from speculant.core.errors import UsageError

PREFIX = "SPECULANT_"
# Read by all commands, not through settings.
ELSEWHERE = frozenset(
    {"SPECULANT_DATA", "SPECULANT_BASES", "SPECULANT_WIDTH", "SPECULANT_EMULATE_BF16", "SPECULANT_EMULATE_AMX"}
)


def check_variables(environment: Mapping[str, str], *, known: Iterable[str], what: str) -> None:
    """Check that the environment has no SPECULANT_* variable that nothing reads.

    Args:
        environment: the variables, such as `os.environ`.
        known: names of the settings, in lower case.
        what: what a variable should be, for the message.

    Raises:
        UsageError: a variable is unknown; the message names the closest known one.
    """
    variables = {PREFIX + name.upper() for name in known}
    for name in environment:
        if name.upper().startswith(PREFIX) and name.upper() not in variables | ELSEWHERE:
            raise UsageError(f"the environment variable {name} is not {what}. {nearest(name.upper(), variables)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the closest known name, or lists all of them."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"Did you mean {near[0]}?" if near else f"There are {', '.join(sorted(known))}."
