"""Memory files of `mix`: tables of narrow and wide rows, and the mixture."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from speculant.core.errors import UnsupportedError
from speculant.drafters.mix.cells import Cells, new_cells
from speculant.drafters.mix.drafter import KIND, WIDE_SHARE
from speculant.drafters.mix.initial import new_mixer
from speculant.drafters.mix.kernels import Tables
from speculant.drafters.mix.merging import merge_cells, merge_mixers
from speculant.drafters.mix.stored import restore_memory, store_tables
from speculant.memory.file import Memory
from speculant.memory.kind import Contents, MemoryKind


def describe(memory: Memory) -> dict[str, int]:
    """Return the number of tokens learned, the number of contexts, and the capacity for contexts."""
    tables = restore_memory(memory.arrays)
    both = (tables.narrow, tables.wide)
    return {
        "tokens learned": int(tables.mixer.frequency[-1]),
        "contexts": sum(int(cells.facts[0]) for cells in both),
        "places for contexts": sum(cells.entries.shape[0] * cells.entries.shape[1] for cells in both),
    }


def empty(memory: Memory) -> Contents:
    """Return empty tables of their initial size, and an untrained mixture."""
    tables = restore_memory(memory.arrays)
    mixer = new_mixer(memory.facts["vocabulary"])
    emptied = tables._replace(narrow=_empty(tables.narrow), wide=_empty(tables.wide), mixer=mixer)
    return store_tables(emptied), memory.facts


def merge(memories: Sequence[Memory], limit: int) -> Contents:
    """Merge tables and mixtures; the latest memory comes last.

    Raises:
        UnsupportedError: vocabularies or initial table sizes differ, or the limit is too small for the tables.
    """
    vocabularies = sorted({memory.facts["vocabulary"] for memory in memories})
    if len(vocabularies) > 1:
        raise UnsupportedError(
            f"the files have vocabularies of different sizes: {', '.join(map(str, vocabularies))} tokens. Merge files "
            "of one model."
        )
    held = [restore_memory(memory.arrays) for memory in memories]
    merged = Tables(
        merge_cells([tables.narrow for tables in held], limit - limit // WIDE_SHARE),
        merge_cells([tables.wide for tables in held], limit // WIDE_SHARE),
        merge_mixers([tables.mixer for tables in held]),
        held[0].bases,
        held[0].scorer,
    )
    return store_tables(merged), {"vocabulary": vocabularies[0]}


def _empty(cells: Cells) -> Cells:
    _, _, first = cells.facts.tolist()
    return new_cells(cells.entries.shape[2], sys.maxsize, first_bits=first)


MIX = MemoryKind(name=KIND, describe=describe, empty=empty, merge=merge)
