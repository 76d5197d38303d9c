"""Memory operations on the files of frozen bases: they can be described, but neither merged nor emptied."""

from __future__ import annotations

from collections.abc import Sequence

from speculant.core.errors import UnsupportedError
from speculant.memory.bases import KIND
from speculant.memory.file import Memory
from speculant.memory.kind import Contents, MemoryKind


def describe(memory: Memory) -> dict[str, int]:
    """Return the number of entries, of tokens counted, and of tokens that have vectors."""
    found = {"entries": int(memory.facts["entries"]), "tokens counted": int(memory.facts["tokens"])}
    if "scores.tables" in memory.arrays:
        found["tokens with vectors"] = memory.arrays["scores.tables"].shape[1] - 1  # row 0 is shared by all others
    return found


def empty(_memory: Memory) -> Contents:
    """Reject the operation: nothing is learned into a base.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        "the file is a frozen base, which learns nothing: there is nothing to clear. To remove its texts, delete the "
        "file, and its copy in your folder of bases, if any, with `speculant base remove`."
    )


def merge(_memories: Sequence[Memory], _limit: int) -> Contents:
    """Reject the operation: pruned counts cannot be added up.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        "frozen bases cannot be merged: the counts pruned from each are lost. Build one base from all sources with "
        "`speculant corpus build --kind mix-base`, or use several at once."
    )


BASE = MemoryKind(name=KIND, describe=describe, empty=empty, merge=merge)
