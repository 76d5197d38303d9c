"""Merging memories of `mix`: cells find their places, rows add up, and the better placed stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memories import learned
from speculant.core.errors import UnsupportedError
from speculant.drafters.mix.arrays import RATE, SAMPLES, Mixer
from speculant.drafters.mix.cells import PLACES, UNIT, Cells, find, new_cells, observe, read
from speculant.drafters.mix.drafter import MixSettings
from speculant.drafters.mix.initial import new_mixer
from speculant.drafters.mix.memory import merge
from speculant.drafters.mix.merging import merge_cells, merge_mixers

LIMIT = 1 << 20
MEMORY = round(MixSettings().row_memory * UNIT)
CONTEXTS = np.random.default_rng(1).integers(1, 2**63, 3000, dtype=np.uint64) << np.uint64(1)


def table(*seen: tuple[int, int], first_bits: int = 3, bits: int | None = None) -> Cells:
    """Return a table that has seen tokens after contexts, pairs (index of the context, token)."""
    empty = new_cells(4, LIMIT, first_bits=bits or first_bits)
    empty.facts[2] = first_bits
    for context, token in seen:
        observe(empty, CONTEXTS[context], np.int32(token), MEMORY)
    return empty


def row(cells: Cells, context: int) -> dict[int, int]:
    """Return the tokens and weights of a context, in their order."""
    tokens, weights = np.empty(4, np.int64), np.empty(4, np.int64)
    cell = find(cells, CONTEXTS[context])
    n = read(cells, cell, tokens, weights) if cell >= 0 else 0
    return dict(zip(tokens[:n].tolist(), weights[:n].tolist(), strict=True))


def test_rows_of_one_context_add_up() -> None:
    """Weights of equal tokens are summed in the later file's order, the lightest go; other rows are brought over."""
    first = table((0, 1), (0, 2), (0, 2), (0, 3), (1, 9))
    second = table((0, 5), (0, 5), (0, 1), (0, 6), (2, 8))
    merged = merge_cells([first, second], LIMIT)
    assert list(row(merged, 0).items()) == [(6, 8), (1, 16), (5, 16), (2, 16)]
    assert (row(merged, 1), row(merged, 2)) == ({9: 8}, {8: 8})
    assert merged.facts[0] == 3


def test_a_row_holds_no_more_than_a_drafter_lets_it() -> None:
    """Two rows at their memory make one at its memory, shares being averages."""
    merged = merge_cells([table(*[(0, 1)] * 20), table(*[(0, 2)] * 20)], LIMIT)
    assert row(merged, 0) == {2: MEMORY // 2, 1: MEMORY // 2}


@pytest.mark.parametrize("bits", [(3, 3), (3, 8), (8, 3), (9, 10)])
def test_tables_of_any_size(bits: tuple[int, int]) -> None:
    """Cells find their places whatever sizes the tables have grown to; nothing goes while there is room."""
    first = table(*((i, i) for i in range(20)), bits=bits[0])
    second = table(*((i, i) for i in range(20, 40)), bits=bits[1])
    known = [i for i in range(40) if row(first, i) or row(second, i)]
    merged = merge_cells([first, second], LIMIT)
    assert merged.facts[1] >= max(bits)
    assert [i for i in range(40) if row(merged, i) == {i: 8}] == known
    assert merged.facts[0] == len(known)


def test_the_table_grows_as_a_drafters_would() -> None:
    """Two tables that fill theirs go into a larger one, within the limit."""
    tables = [table(*((i, 1) for i in range(n, n + 300)), bits=6) for n in (0, 300)]
    merged = merge_cells(tables, LIMIT)
    assert merged.facts[1] > 6
    assert merged.facts[0] == sum(each.facts[0] for each in tables)
    tight = merge_cells(tables, tables[0].entries.nbytes)
    assert tight.entries.nbytes == tables[0].entries.nbytes
    assert tight.facts[0] == np.count_nonzero(tight.entries[:, :, 0])


def test_what_stands_further_forward_stays() -> None:
    """In a full bucket the front halves of both remain, a cell that both have before all others."""
    contexts = [i for i in range(len(CONTEXTS)) if CONTEXTS[i] >> np.uint64(61) == np.uint64(0)]
    first = table(*((i, 1) for i in contexts[:PLACES]))
    second = table(*((i, 2) for i in contexts[PLACES - 1 : 2 * PLACES - 1]))
    merged = merge_cells([first, second], first.entries.nbytes)
    kept = [i for i in contexts if row(merged, i)]
    shared = contexts[PLACES - 1]
    assert row(merged, shared) == {2: 8, 1: 8}
    assert kept == contexts[: PLACES // 2] + contexts[PLACES - 1 : PLACES - 1 + PLACES // 2]


def test_tables_that_cannot_be_merged() -> None:
    """Checks begin at a bit that depends on the first size; a limit below it holds no table."""
    with pytest.raises(UnsupportedError, match="different sizes"):
        merge_cells([table((0, 1)), table((0, 1), first_bits=4)], LIMIT)
    with pytest.raises(UnsupportedError, match="Raise the limit"):
        merge_cells([table((0, 1)), table((0, 1))], 300)


def test_mixtures_are_averaged_by_their_samples() -> None:
    """Frequencies and steps add up; weights and biases are averaged by steps, rates by samples; one cache stays."""

    def mixer(steps: float, weight: float, rate: float, samples: float, recent: int) -> Mixer:
        learned = new_mixer(5)
        learned.weights[:], learned.biases[:] = weight, -weight
        learned.states[RATE, 0, 0], learned.states[SAMPLES, 0, 0] = rate, samples
        learned.frequency[[2, -1]] += int(steps)
        learned.cache[:, 0] = recent
        learned.steps[0] = steps
        return learned

    fresh = new_mixer(5)
    merged = merge_mixers([mixer(30, 1.0, 0.5, 1, 3), mixer(10, 2.0, 0.9, 3, 4), fresh])
    assert np.allclose(merged.weights, 1.25)
    assert np.allclose(merged.biases, -1.25)
    assert np.allclose(merged.states[:, 0, 0], [0.8, np.log(4), 4])
    assert np.allclose(merged.states[:, 1:], fresh.states[:, 1:])
    assert merged.frequency.tolist() == [0, 0, 40, 0, 0, 40]
    assert merged.cache[0, 0] == 4
    assert merged.steps[0] == 40
    assert [array.dtype for array in merged] == [array.dtype for array in fresh]
    assert np.array_equal(merge_mixers([fresh, fresh]).weights, fresh.weights)


def test_memories_of_different_vocabularies_are_refused(tmp_path: Path) -> None:
    """A drafter would refuse the file, so merging does."""
    memory = learned(tmp_path, "mix", range(10))
    with pytest.raises(UnsupportedError, match="60, 61 tokens"):
        merge([memory, replace(memory, facts={"vocabulary": 61})], 64 << 20)
