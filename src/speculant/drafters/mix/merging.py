"""Merging several memories of `mix`.

A cell does not store its context, but its bucket and its check together are the leading bits of the context's hash,
which determine its bucket in a table of any size that started with the same number of buckets. Cells are copied place
by place: cells nearer the front of their bucket, which were used more often or more recently, come first, and at equal
places those of later files. Rows of the same context are added up; once a bucket is full, remaining cells are dropped.

Frequencies and steps are added. Mixing weights and biases are averaged, weighted by each file's steps; rates are
weighted by the samples of each state. The cache of recent tokens is taken from the last file that has one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from speculant.core.errors import UnsupportedError
from speculant.core.tree import Array
from speculant.drafters.mix.arrays import RATE, SAMPLES, Mixer
from speculant.drafters.mix.cells import (
    CHECK_BITS,
    HEAVIEST,
    PLACES,
    UNIT,
    Cells,
    check_of,
    claim,
    find,
    grow_cells,
    new_cells,
    place_of,
    put,
    read,
)
from speculant.drafters.mix.drafter import MixSettings
from speculant.drafters.mix.fitting import Inputs, find_training, fit_mixture
from speculant.drafters.mix.mixer import frequency_bands


def merge_cells(tables: Sequence[Cells], limit: int) -> Cells:
    """Return one table of at most `limit` bytes; the latest of `tables` comes last.

    Raises:
        UnsupportedError: the tables started with different sizes, or the limit is below their initial size.
    """
    used, bits, first = np.array([cells.facts for cells in tables]).T
    width = tables[0].entries.shape[2]
    if len(set(first.tolist())) > 1:
        raise UnsupportedError(
            "the files started with tables of different sizes, some under a very small memory limit. "
            "Merge files that started under a limit of 2 MB or more."
        )
    merged = new_cells(width, limit, first_bits=int(bits.max()))
    if merged.facts[1] < first[0]:
        raise UnsupportedError(
            f"tables of `mix` do not fit the memory limit: {limit >> 10} KB for one of them. Raise the limit."
        )
    merged.facts[:] = used.sum(), merged.facts[1], first[0]
    while (larger := grow_cells(merged, limit)) is not merged:  # grow as if no two tables shared a context
        merged = larger
    merged.facts[0] = 0
    for place in range(PLACES):
        for cells in reversed(tables):
            copy_cells(cells, place, merged, round(MixSettings().row_memory * UNIT))
    return merged


def merge_mixers(mixers: Sequence[Mixer]) -> Mixer:
    """Return one mixture; the latest of `mixers` comes last."""
    steps = np.array([mixer.steps[0] for mixer in mixers])
    inputs = max(find_training(mixer.weights, mixer.states) or Inputs(0, False) for mixer in mixers)
    mixers = [fit_mixture(mixer, inputs) for mixer in mixers]
    weights = np.stack([mixer.weights for mixer in mixers])
    states = np.stack([mixer.states for mixer in mixers])
    rates = np.einsum("fis,fis->is", states[:, RATE], _shares(states[:, SAMPLES]))
    samples = np.minimum(states[:, SAMPLES].sum(axis=0), mixers[0].tables.shape[1] - 1)
    frequency = sum((mixer.frequency for mixer in mixers[1:]), mixers[0].frequency)
    caches = [mixer.cache for mixer in mixers if mixer.cache[1, 0] > 0]
    return Mixer(
        weights=np.einsum("fsi,f->si", weights, _shares(steps)).astype(np.float32),
        states=np.stack([rates, np.log(rates / (1 - rates)), samples]).astype(np.float32),
        biases=np.einsum("fb,f->b", np.stack([mixer.biases for mixer in mixers]), _shares(steps)).astype(np.float32),
        frequency=frequency,
        bands=frequency_bands(frequency[:-1]),
        cache=caches[-1] if caches else mixers[-1].cache,
        steps=np.array([steps.sum()]),
        tables=mixers[0].tables,
    )


def _shares(counts: Array) -> Array:
    """Return each file's share of counts [F, ...]; equal shares where all counts are zero."""
    total = counts.sum(axis=0, dtype=np.float64)
    return np.where(total > 0, counts / np.maximum(total, 1), 1 / len(counts))


@njit(cache=True, nogil=True)
def copy_cells(source: Cells, place: int, target: Cells, memory: int) -> None:
    """Copy the cells at one place of every bucket to another table, as far as there is room.

    If both tables have a row, the total of the merged row is at most that of the heavier one, or `memory` if larger.
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
        maximum = max(memory, weights[:length].sum(), added[:others].sum())
        length = _fold(tokens, weights, length, more[:others], added[:others], width, maximum)
        held = target.entries[cell // PLACES, cell % PLACES]
        for i in range(width):
            body = np.uint32(0)
            if i < length:
                body = np.uint32(tokens[i]) | np.uint32(weights[i]) << np.uint32(20)
            put(held, i, body, check)


@njit(cache=True, nogil=True)
def _fold(tokens: Array, weights: Array, length: int, more: Array, added: Array, width: int, maximum: int) -> int:
    """Add a row to another in its order; drop the lightest entries beyond `width`, limit the total to `maximum`."""
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
        if total > maximum:
            weights[i] = max(1, weights[i] * maximum // total)
        weights[i] = min(weights[i], HEAVIEST)
    return length
