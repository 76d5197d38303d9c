"""Memory files of Token Recycling: the matrix of successors, and how often each rank was correct."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.core.errors import UnsupportedError
from speculant.drafters.recycling.drafter import KIND, UNKNOWN, prior_hits
from speculant.memory.file import Memory
from speculant.memory.kind import Contents, MemoryKind, merge_limit_error


def describe(memory: Memory) -> dict[str, int]:
    """Return the number of tokens that have successors, and the number of successors per token."""
    successors = memory.arrays["successors"]
    known = int(np.count_nonzero(successors[:, 0] != UNKNOWN))
    return {"tokens with successors": known, "successors of each": successors.shape[1]}


def empty(memory: Memory) -> Contents:
    """Return an empty matrix of the same size."""
    shape = memory.arrays["successors"].shape
    return {"successors": np.full(shape, UNKNOWN, np.int32), "hits": prior_hits(shape[1])}, memory.facts


def merge(memories: Sequence[Memory], limit: int) -> Contents:
    """Take each token's row from the last file that has it; add up the counts of correct ranks.

    Raises:
        UnsupportedError: the files have different numbers of successors, or the matrix exceeds the limit.
    """
    widths = sorted({memory.arrays["successors"].shape[1] for memory in memories})
    if len(widths) > 1:
        raise UnsupportedError(
            f"the files keep different numbers of successors per token: {', '.join(map(str, widths))}. "
            "Merge files that were made with the same settings."
        )
    vocabulary = max(memory.facts["vocabulary"] for memory in memories)
    merged = np.full((vocabulary, widths[0]), UNKNOWN, np.int32)
    if merged.nbytes > limit:
        raise merge_limit_error(merged.nbytes, limit)
    prior = prior_hits(widths[0])
    hits = prior.copy()
    for memory in memories:
        successors = memory.arrays["successors"]
        known = np.flatnonzero(successors[:, 0] != UNKNOWN)
        merged[known] = successors[known]
        hits += memory.arrays["hits"] - prior
    return {"successors": merged, "hits": hits}, {"vocabulary": vocabulary}


RECYCLING = MemoryKind(name=KIND, describe=describe, empty=empty, merge=merge)
