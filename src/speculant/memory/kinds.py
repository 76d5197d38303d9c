"""The kinds of memory files: what each holds, what an empty one is, and how several become one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from speculant.core.errors import ForeignMemoryError
from speculant.drafters import recycling
from speculant.drafters.aded import drafter as aded
from speculant.drafters.aded.corpus import count_trigrams
from speculant.drafters.aded.frozen import freeze
from speculant.drafters.copying import maxgram
from speculant.drafters.copying.maxgram import new_bigrams
from speculant.drafters.mix import drafter as mix
from speculant.drafters.mix.cells import new_cells
from speculant.drafters.mix.merging import merge_mixes, tables_of
from speculant.drafters.mix.mixer import new_mixer
from speculant.drafters.recycling import UNKNOWN, first_hits
from speculant.drafters.suffix import drafter as suffix
from speculant.drafters.suffix import rest, sam
from speculant.drafters.suffix.history import END
from speculant.memory.file import Memory
from speculant.memory.merging import (
    Array,
    Contents,
    merge_automata,
    merge_bigrams,
    merge_corpora,
    merge_matrices,
    merge_tables,
    merge_trees,
    table_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What can be done with memories of one kind.

    Attributes:
        module: the module of the drafters that read it.
        holdings: counts what a memory holds, by name.
        empty: returns what a drafter that has learned nothing would have written.
        merge: makes one of several, in at most so many bytes.
    """

    module: str
    holdings: Callable[[Memory], dict[str, int]]
    empty: Callable[[Memory], Contents]
    merge: Callable[[Sequence[Memory], int], Contents]


def kind_of(memory: Memory) -> Kind:
    """Return a memory's kind.

    Raises:
        ForeignMemoryError: it is none of this version.
    """
    if memory.kind not in KINDS:
        raise ForeignMemoryError(
            f"this Speculant knows no memories of kind '{memory.kind}'. Use the version that wrote the file."
        )
    return KINDS[memory.kind]


def _table_holdings(memory: Memory) -> dict[str, int]:
    table = table_of(memory)
    trigrams = count_trigrams(table)
    return {"tri-grams": trigrams, "bi-grams": len(table.token) - trigrams, "contexts": len(table.second)}


def _empty_table(memory: Memory) -> Contents:
    none = np.empty(0, np.int64)
    table = freeze(none, none, none, none, vocabulary=memory.facts["vocabulary"])
    return {name: array for name, array in table._asdict().items() if name != "decode"}, memory.facts


def _log_holdings(memory: Memory) -> dict[str, int]:
    documents, tokens = _count(memory.arrays["text"])
    return {"documents": documents, "tokens": tokens}


def _empty_log(memory: Memory) -> Contents:
    return {"text": np.empty(0, np.int32)}, memory.facts


def _corpus_holdings(memory: Memory) -> dict[str, int]:
    corpus = [_count(array) for name, array in memory.arrays.items() if name.startswith("tokens-")]
    requests, tokens = _count(memory.arrays["text"])
    return {
        "corpus documents": sum(documents for documents, _ in corpus),
        "corpus tokens": sum(tokens for _, tokens in corpus),
        "past requests": requests,
        "tokens of past requests": tokens,
    }


def _empty_corpus(memory: Memory) -> Contents:
    return {"text": np.empty(0, np.int32)}, {**memory.facts, "blocks": 0}


def _matrix_holdings(memory: Memory) -> dict[str, int]:
    successors = memory.arrays["successors"]
    known = int(np.count_nonzero(successors[:, 0] != UNKNOWN))
    return {"tokens with successors": known, "successors of each": successors.shape[1]}


def _empty_matrix(memory: Memory) -> Contents:
    shape = memory.arrays["successors"].shape
    return {"successors": np.full(shape, UNKNOWN, np.int32), "hits": first_hits(shape[1])}, memory.facts


def _bigram_holdings(memory: Memory) -> dict[str, int]:
    counts = memory.arrays["counts"]
    return {"tokens with successors": int(np.count_nonzero(counts[:, 0])), "bi-grams": int(np.count_nonzero(counts))}


def _empty_bigrams(memory: Memory) -> Contents:
    successors, counts = new_bigrams(memory.facts["vocabulary"])
    return {"successors": successors, "counts": counts}, memory.facts


def _mix_holdings(memory: Memory) -> dict[str, int]:
    tables = tables_of(memory)
    return {
        "tokens learned": int(memory.arrays["mixer.frequency"][-1]),
        "contexts": sum(int(cells.facts[0]) for cells in tables.values()),
        "places for contexts": sum(cells.entries.shape[0] * cells.entries.shape[1] for cells in tables.values()),
    }


def _empty_mix(memory: Memory) -> Contents:
    arrays: dict[str, Array] = {}
    for part, cells in tables_of(memory).items():
        _, _, first = cells.facts.tolist()
        empty = new_cells(cells.entries.shape[2], sys.maxsize, first_bits=first)
        arrays |= {f"{part}.{name}": array for name, array in empty._asdict().items()}
    mixer = new_mixer(memory.facts["vocabulary"])
    return arrays | {f"mixer.{name}": array for name, array in mixer._asdict().items()}, memory.facts


def _count(log: Array) -> tuple[int, int]:
    """Return the documents of a log, and their tokens."""
    documents = int(np.count_nonzero(log == END))
    return documents, len(log) - documents


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        aded.KIND: Kind(module=aded.__name__, holdings=_table_holdings, empty=_empty_table, merge=merge_tables),
        mix.KIND: Kind(module=mix.__name__, holdings=_mix_holdings, empty=_empty_mix, merge=merge_mixes),
        suffix.KIND: Kind(module=suffix.__name__, holdings=_log_holdings, empty=_empty_log, merge=merge_trees),
        sam.KIND: Kind(module=sam.__name__, holdings=_log_holdings, empty=_empty_log, merge=merge_automata),
        rest.KIND: Kind(module=rest.__name__, holdings=_corpus_holdings, empty=_empty_corpus, merge=merge_corpora),
        recycling.KIND: Kind(
            module=recycling.__name__, holdings=_matrix_holdings, empty=_empty_matrix, merge=merge_matrices
        ),
        maxgram.KIND: Kind(
            module=maxgram.__name__, holdings=_bigram_holdings, empty=_empty_bigrams, merge=merge_bigrams
        ),
    }
)
