"""Conversion of the memory of `mix` to and from the named arrays of a memory file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from speculant.core.tree import Array
from speculant.drafters.mix.arrays import BIASES, FREQUENCIES, INPUTS, LOCAL, SAMPLES, SETS, STATES, Mixer
from speculant.drafters.mix.base import in_use
from speculant.drafters.mix.cells import CHECK_BITS, MAX_TOKENS, Cells
from speculant.drafters.mix.initial import new_mixer
from speculant.drafters.mix.kernels import Tables
from speculant.drafters.mix.mixer import frequency_bands
from speculant.drafters.mix.scores import no_scorer

_STORED_NAMES = {"mixer.states": "mixer.evidence"}  # the name in existing files, which must stay


def make_stored_name(part: str, field: str) -> str:
    """Return the name of a part's field in a memory file."""
    name = f"{part}.{field}"
    return _STORED_NAMES.get(name, name)


def store_tables(tables: Tables) -> dict[str, Array]:
    """Return the arrays of a memory by their names in the file; biases are left out if none were learned."""
    return {
        make_stored_name(part, field): array
        for part, arrays in (("narrow", tables.narrow), ("wide", tables.wide), ("mixer", tables.mixer))
        for field, array in arrays._asdict().items()
        if field != "biases" or array.any()
    }


def complete_arrays(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return a file's arrays with those that version 0.1 lacked: biases, and the input LOCAL at a weight of zero."""
    found = {make_stored_name("mixer", "biases"): np.zeros(BIASES, np.float32), **arrays}
    weights, states = (make_stored_name("mixer", field) for field in ("weights", "states"))
    older = weights in found and found[weights].shape == (SETS + FREQUENCIES, INPUTS)
    if older and states in found and found[states].shape == (3, INPUTS - 1, STATES):
        found[weights] = np.insert(found[weights], LOCAL, 0, axis=1)
        found[states] = np.insert(found[states], LOCAL, new_mixer(1).states[:, LOCAL], axis=1)
    return found


def restore_memory(arrays: Mapping[str, Array]) -> Tables:
    """Return the memory stored in a file's arrays, without bases."""
    arrays = complete_arrays(arrays)

    def fields(part: str, names: tuple[str, ...]) -> list[Array]:
        return [arrays[make_stored_name(part, field)] for field in names]

    return Tables(
        Cells(*fields("narrow", Cells._fields)),
        Cells(*fields("wide", Cells._fields)),
        Mixer(*fields("mixer", Mixer._fields)),
        in_use(()),
        no_scorer(),
    )


def is_valid(loaded: Tables, own: Tables, vocabulary: int) -> bool:
    """Return whether loaded arrays, which may be crafted, are safe for the kernels, which check nothing.

    Args:
        loaded: memory read from a file; its mixture may have been trained with another number of bases than `own`.
        own: a memory with this vocabulary.
        vocabulary: V.
    """
    for cells, like in ((loaded.narrow, own.narrow), (loaded.wide, own.wide)):
        entries, facts = cells
        if entries.dtype != like.entries.dtype or facts.dtype != like.facts.dtype or facts.shape != (3,):
            return False
        _, bits, first = facts.tolist()
        shaped = 0 <= first <= bits < first + CHECK_BITS <= 64 and entries.shape == (
            1 << bits,
            *like.entries.shape[1:],
        )
        if not shaped or (entries & np.uint32(MAX_TOKENS - 1)).max() >= vocabulary:
            return False
    mixer = loaded.mixer
    typed = all(array.dtype == like.dtype for array, like in zip(mixer, own.mixer, strict=True))
    finite = typed and all(
        np.isfinite(array).all() for array in (mixer.weights, mixer.states, mixer.biases, mixer.steps)
    )
    tokens = mixer.cache[0]
    return bool(
        finite
        and mixer.states[SAMPLES].min() >= 0
        and 0 <= tokens.min() <= tokens.max() < vocabulary
        and np.array_equal(mixer.bands, frequency_bands(mixer.frequency[:-1]))
        and np.array_equal(mixer.tables, own.mixer.tables)
    )
