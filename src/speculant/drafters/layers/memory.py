"""The memory files of SWIFT: a search for the layers to skip, which continues where it stopped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.core.errors import UnsupportedError
from speculant.drafters.layers.search import KIND, fresh_search, space_of
from speculant.memory.file import Memory
from speculant.memory.kind import Contents, MemoryKind, merge_limit_error


def describe(memory: Memory) -> dict[str, int]:
    """Return the numbers of layers, of skipped layers (or sublayers), and of scored sets."""
    skipped = sum(len(memory.arrays[name]) for name in ("attention", "skipped") if name in memory.arrays)
    return {"layers": memory.facts["layers"], "skipped": skipped, "sets scored": memory.facts["step"]}


def empty(memory: Memory) -> Contents:
    """Return a search of the same model without any scores."""
    return fresh_search(space_of(memory.facts), memory.facts["size"])


def merge(memories: Sequence[Memory], limit: int) -> Contents:
    """Add up the scores of several searches of a model, and keep the best set; among equals, that of the last file.

    Raises:
        UnsupportedError: their models or sets differ in size, or the result exceeds the limit.
    """
    shapes = {(space_of(memory.facts), memory.facts["size"]) for memory in memories}
    if len(shapes) > 1:
        raise UnsupportedError(
            "the files hold searches of different models, or with different numbers of skipped layers; merge those "
            "of one search."
        )
    [(space, size)] = shapes
    arrays, facts = fresh_search(space, size)
    if (needed := sum(array.nbytes for array in arrays.values())) > limit:
        raise merge_limit_error(needed, limit)
    prior, merged = arrays["precision"], {name: np.array(array) for name, array in arrays.items()}
    for memory in memories:
        merged["precision"] += memory.arrays["precision"] - prior
        merged["moment"] += memory.arrays["moment"]
        facts = {**facts, "step": facts["step"] + memory.facts["step"]}
        if memory.facts["best"] >= facts["best"]:
            own = {name: memory.facts[name] for name in ("best", "since", "over")}
            facts = {**facts, **own}
            merged |= {name: memory.arrays[name] for name in ("attention", "skipped") if name in memory.arrays}
    return merged, facts


LAYER_SEARCH = MemoryKind(name=KIND, describe=describe, empty=empty, merge=merge)
