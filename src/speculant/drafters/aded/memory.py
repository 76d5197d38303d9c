"""Memory files of ADED: a frozen tri-gram table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.drafters.aded.corpus import count_trigrams
from speculant.drafters.aded.drafter import KIND
from speculant.drafters.aded.frozen import (
    CHECKPOINT_BYTES,
    Frozen,
    count_frozen_bytes,
    decode_table,
    freeze,
    heaviest_rows,
    thaw,
)
from speculant.memory.file import Memory
from speculant.memory.kind import Contents, MemoryKind, merge_limit_error, sum_by_pair


def table_of(memory: Memory) -> Frozen:
    """Return the table stored in a memory."""
    return Frozen(**memory.arrays, decode=decode_table())


def describe(memory: Memory) -> dict[str, int]:
    """Return the number of tri-grams, bi-grams and contexts."""
    table = table_of(memory)
    trigrams = count_trigrams(table)
    return {"tri-grams": trigrams, "bi-grams": len(table.token) - trigrams, "contexts": len(table.second)}


def empty(memory: Memory) -> Contents:
    """Return an empty table for the same vocabulary."""
    none = np.empty(0, np.int64)
    return freeze(none, none, none, none, vocabulary=memory.facts["vocabulary"]).list_arrays(), memory.facts


def merge(memories: Sequence[Memory], limit: int) -> Contents:
    """Add up the weights of all n-grams; if the limit is exceeded, the lightest rows are dropped.

    Raises:
        UnsupportedError: the index over the vocabulary alone exceeds the limit.
    """
    vocabulary = max(memory.facts["vocabulary"] for memory in memories)
    parts = []
    for memory in memories:
        table = table_of(memory)
        a, b, c, weight = thaw(table)
        parts.append((np.where(a == len(table.first) - 2, vocabulary, a), b, c, weight))
    a, b, c, weight = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    pair, c, weight = sum_by_pair(a << 24 | b, c, weight)
    a, b = pair >> 24, pair & (1 << 24) - 1
    table = freeze(a, b, c, weight, vocabulary=vocabulary)
    if table.nbytes > limit:
        room = limit - count_frozen_bytes(0, 0, vocabulary)
        if room < 0:
            raise merge_limit_error(limit - room, limit)
        kept = heaviest_rows(table, np.ones(len(table.token), bool), room - CHECKPOINT_BYTES)
        table = freeze(*(column[kept] for column in thaw(table)), vocabulary=vocabulary)
    return table.list_arrays(), {"vocabulary": vocabulary}


TRIGRAM = MemoryKind(name=KIND, describe=describe, empty=empty, merge=merge)
