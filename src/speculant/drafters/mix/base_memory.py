"""What can be done with the files of frozen bases: they are described, but neither merged nor emptied."""

from __future__ import annotations

from collections.abc import Sequence

from speculant.core.errors import UnsupportedError
from speculant.memory.bases import KIND
from speculant.memory.file import Memory
from speculant.memory.kind import Contents, MemoryKind


def describe(memory: Memory) -> dict[str, int]:
    """Return how many entries there are, in how many tokens they were counted, and how many tokens have vectors."""
    found = {"entries": int(memory.facts["entries"]), "tokens counted": int(memory.facts["tokens"])}
    if "scores.tables" in memory.arrays:
        found["tokens with vectors"] = memory.arrays["scores.tables"].shape[1] - 1  # the first is of all others
    return found


def empty(_memory: Memory) -> Contents:
    """Refuse.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        "the file is a frozen base, into which nothing is learned: there is nothing to clear. To be rid of its texts "
        "delete the file, and by `speculant base remove` the copy in your folder of bases if there is one."
    )


def merge(_memories: Sequence[Memory], _limit: int) -> Contents:
    """Refuse.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        "frozen bases cannot be merged: what was pruned from each cannot be counted any more. Build one base of all "
        "sources by `speculant corpus build --kind mix-base`, or use several at once."
    )


BASE = MemoryKind(name=KIND, describe=describe, empty=empty, merge=merge)
