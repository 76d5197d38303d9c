"""Memory files of Max-Gram: each token's most frequent successors and their counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.drafters.copying.maxgram import KEPT, KIND, new_bigrams
from speculant.memory.file import Memory
from speculant.memory.kind import Contents, MemoryKind, merge_limit_error, sum_by_pair


def describe(memory: Memory) -> dict[str, int]:
    """Return the number of tokens that have successors, and the number of bi-grams."""
    counts = memory.arrays["counts"]
    return {"tokens with successors": int(np.count_nonzero(counts[:, 0])), "bi-grams": int(np.count_nonzero(counts))}


def empty(memory: Memory) -> Contents:
    """Return an empty model for the same vocabulary."""
    successors, counts = new_bigrams(memory.facts["vocabulary"])
    return {"successors": successors, "counts": counts}, memory.facts


def merge(memories: Sequence[Memory], limit: int) -> Contents:
    """Add up the counts of all pairs and keep each token's most frequent successors.

    Counts of Space-Saving summaries may be added (Agarwal et al., "Mergeable Summaries", PODS 2012).

    Raises:
        UnsupportedError: the model exceeds the limit.
    """
    vocabulary = max(memory.facts["vocabulary"] for memory in memories)
    successors, counts = new_bigrams(vocabulary)
    if successors.nbytes + counts.nbytes > limit:
        raise merge_limit_error(successors.nbytes + counts.nbytes, limit)
    parts = []
    for memory in memories:
        before, entry = np.nonzero(memory.arrays["counts"])
        parts.append((before, *(memory.arrays[name][before, entry] for name in ("successors", "counts"))))
    before, token, count = sum_by_pair(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    order = np.lexsort((token, -count, before))
    before, token, count = before[order], token[order], count[order]
    rank = np.arange(len(before)) - np.searchsorted(before, before)
    kept = rank < KEPT
    successors[before[kept], rank[kept]] = token[kept]
    counts[before[kept], rank[kept]] = np.minimum(count[kept], np.iinfo(np.int32).max)
    return {"successors": successors, "counts": counts}, {"vocabulary": vocabulary}


BIGRAM = MemoryKind(name=KIND, describe=describe, empty=empty, merge=merge)
