"""Several memories of `mix` made one.

A cell keeps no context, but its bucket and its check together are the leading bits of the context's hash, so a cell
finds its place in a table of any size that began with as many buckets. Cells are brought over place by place: what
stands further forward in its bucket, and so was used more or later, comes first, later files before earlier ones
among equals. Rows of one context are added up; once a bucket is full, the rest goes.

Frequencies and steps add up. Mixing weights are averages by the steps that each file took, rates by how often each
file met a state. The late tokens are those of the last file that has any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.core.errors import UnsupportedError
from speculant.drafters.mix.cells import (
    CHECK_BITS,
    HEAVIEST,
    PLACES,
    UNIT,
    Cells,
    check_of,
    claim,
    find,
    grown,
    new_cells,
    place_of,
    put,
    read,
)
from speculant.drafters.mix.drafter import WIDE_SHARE, MixSettings
from speculant.drafters.mix.mixer import Mixer, frequency_bands
from speculant.memory.file import Memory

Array = npt.NDArray[Any]


def tables_of(memory: Memory) -> dict[str, Cells]:
    """Return the tables of a memory, `narrow` and `wide`."""
    return {part: Cells(*(memory.arrays[f"{part}.{name}"] for name in Cells._fields)) for part in ("narrow", "wide")}


def merge_mixes(memories: Sequence[Memory], limit: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """Merge the tables and the mixtures, the latest memory last.

    Raises:
        UnsupportedError: the vocabularies or the tables' first sizes differ, or the limit is too small for tables.
    """
    vocabularies = sorted({memory.facts["vocabulary"] for memory in memories})
    if len(vocabularies) > 1:
        raise UnsupportedError(
            f"the files are of different vocabularies: {', '.join(map(str, vocabularies))} ids. "
            "Merge files of one model."
        )
    tables = [tables_of(memory) for memory in memories]
    shares = {"narrow": limit - limit // WIDE_SHARE, "wide": limit // WIDE_SHARE}
    arrays: dict[str, Array] = {}
    for part, share in shares.items():
        merged = merge_cells([each[part] for each in tables], share)
        arrays |= {f"{part}.{name}": array for name, array in merged._asdict().items()}
    mixer = merge_mixers([Mixer(*(memory.arrays[f"mixer.{name}"] for name in Mixer._fields)) for memory in memories])
    arrays |= {f"mixer.{name}": array for name, array in mixer._asdict().items()}
    return arrays, {"vocabulary": vocabularies[0]}


def merge_cells(tables: Sequence[Cells], limit: int) -> Cells:
    """Return one table of at most `limit` bytes, the latest of `tables` last.

    Raises:
        UnsupportedError: the tables began with different sizes, or the limit holds less than that.
    """
    used, bits, first = np.array([cells.facts for cells in tables]).T
    width = tables[0].entries.shape[2]
    if len(set(first.tolist())) > 1:
        raise UnsupportedError(
            "the files began with tables of different sizes, some under a very small memory limit. "
            "Merge files that began under 2 MB or more."
        )
    merged = new_cells(width, limit, first_bits=int(bits.max()))
    if merged.facts[1] < first[0]:
        raise UnsupportedError(
            f"tables of `mix` do not fit the memory limit: {limit >> 10} KB for one of them. Raise the limit."
        )
    merged.facts[:] = used.sum(), merged.facts[1], first[0]
    while (larger := grown(merged, limit)) is not merged:  # as if no context were in two tables
        merged = larger
    merged.facts[0] = 0
    for place in range(PLACES):
        for cells in reversed(tables):
            bring(cells, place, merged, round(MixSettings().row_memory * UNIT))
    return merged


def merge_mixers(mixers: Sequence[Mixer]) -> Mixer:
    """Return one mixture, the latest of `mixers` last."""
    steps = np.array([mixer.steps[0] for mixer in mixers])
    weights = np.stack([mixer.weights for mixer in mixers])
    evidence = np.stack([mixer.evidence for mixer in mixers])
    rates = np.einsum("fis,fis->is", evidence[:, 0], _shares(evidence[:, 2]))
    met = np.minimum(evidence[:, 2].sum(axis=0), mixers[0].tables.shape[1] - 1)
    frequency = sum((mixer.frequency for mixer in mixers[1:]), mixers[0].frequency)
    late = [mixer.cache for mixer in mixers if mixer.cache[1, 0] > 0]
    return Mixer(
        weights=np.einsum("fsi,f->si", weights, _shares(steps)).astype(np.float32),
        evidence=np.stack([rates, np.log(rates / (1 - rates)), met]).astype(np.float32),
        frequency=frequency,
        bands=frequency_bands(frequency[:-1]),
        cache=late[-1] if late else mixers[-1].cache,
        steps=np.array([steps.sum()]),
        tables=mixers[0].tables,
    )


def _shares(counts: Array) -> Array:
    """Return each file's share of counts [F, ...]; equal ones where all are zero."""
    total = counts.sum(axis=0, dtype=np.float64)
    return np.where(total > 0, counts / np.maximum(total, 1), 1 / len(counts))


@njit(cache=True, nogil=True)
def bring(source: Cells, place: int, target: Cells, memory: int) -> None:
    """Bring what stands at a place of every bucket into another table, as far as there is room.

    A row that both have holds at most what the heavier one held, or `memory` where that is more.
    """
    width = source.entries.shape[2]
    tokens, weights = np.empty(2 * width, np.int64), np.empty(2 * width, np.int64)
    more, added = np.empty(width, np.int64), np.empty(width, np.int64)
    bits, first = source.facts[1], source.facts[2]
    for bucket in range(len(source.entries)):
        row = source.entries[bucket, place]
        if row[0] == np.uint32(0):
            continue
        check = check_of(row)
        leading = (bucket >> (bits - first)) << CHECK_BITS | check
        context = np.uint64(leading) << np.uint64(64 - CHECK_BITS - first)
        cell = find(target, context)
        if cell < 0:
            home, _ = place_of(target, context)
            if target.entries[home, PLACES - 1, 0] == np.uint32(0):
                cell = claim(target, context)
                target.entries[cell // PLACES, cell % PLACES] = row
            continue
        length = read(target, cell, tokens, weights)
        others = read(source, bucket * PLACES + place, more, added)
        most = max(memory, weights[:length].sum(), added[:others].sum())
        length = _fold(tokens, weights, length, more[:others], added[:others], width, most)
        held = target.entries[cell // PLACES, cell % PLACES]
        for i in range(width):
            body = np.uint32(0)
            if i < length:
                body = np.uint32(tokens[i]) | np.uint32(weights[i]) << np.uint32(20)
            put(held, i, body, check)


@njit(cache=True, nogil=True)
def _fold(tokens: Array, weights: Array, length: int, more: Array, added: Array, width: int, most: int) -> int:
    """Add a row to one whose order stays; the lightest go beyond `width`, and the total is held at `most`."""
    for k in range(len(more)):
        at = 0
        while at < length and tokens[at] != more[k]:
            at += 1
        if at == length:
            tokens[at], weights[at] = more[k], 0
            length += 1
        weights[at] += added[k]
    while length > width:
        lightest = length - 1
        for i in range(length - 2, -1, -1):
            if weights[i] < weights[lightest]:
                lightest = i
        tokens[lightest : length - 1] = tokens[lightest + 1 : length].copy()
        weights[lightest : length - 1] = weights[lightest + 1 : length].copy()
        length -= 1
    total = weights[:length].sum()
    for i in range(length):
        if total > most:
            weights[i] = max(1, weights[i] * most // total)
        weights[i] = min(weights[i], HEAVIEST)
    return length
