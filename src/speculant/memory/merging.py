"""Several memories made one: by each kind's own rule, later files before earlier ones where both cannot stay.

    trigram, bigram                  weights of equal n-grams add up, the heaviest stay (bi-grams as in Agarwal et al.,
                                     "Mergeable Summaries", PODS 2012, for Space-Saving)
    suffix-tree, suffix-automaton    documents are learned one after the other, the latest stay
    suffix-array                     corpora stand side by side, past requests as above
    recycling                        the last file that knows a token gives its row; what the ranks were worth adds up

`mix` has a file of its own, mix_merging.py. All files are of one kind and tokenizer; models of one tokenizer may have
differently padded vocabularies. What comes of it takes no more than `limit` bytes when a drafter has loaded it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from speculant.core.errors import UnsupportedError
from speculant.core.tree import Int32
from speculant.drafters.aded.frozen import Frozen, decode_table, freeze, frozen_bytes, heaviest_rows, thaw
from speculant.drafters.copying.maxgram import KEPT, new_bigrams
from speculant.drafters.recycling import UNKNOWN, first_hits
from speculant.drafters.suffix.automaton import SuffixAutomaton
from speculant.drafters.suffix.drafter import SuffixSettings
from speculant.drafters.suffix.history import AnyIndex, History, documents_of
from speculant.drafters.suffix.rest import RestSettings
from speculant.drafters.suffix.tree import SuffixTree
from speculant.memory.file import Memory

Array = npt.NDArray[Any]
Contents = tuple[Mapping[str, Array], Mapping[str, Any]]


def merge_tables(memories: Sequence[Memory], limit: int) -> Contents:
    """Add up the weights of all n-grams; where the limit is exceeded, the lightest rows go.

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
    pair, c, weight = _add_up(a << 24 | b, c, weight)
    a, b = pair >> 24, pair & (1 << 24) - 1
    table = freeze(a, b, c, weight, vocabulary=vocabulary)
    if table.nbytes > limit:
        room = limit - frozen_bytes(0, 0, vocabulary)
        if room < 0:
            raise _too_large(limit - room, limit)
        kept = heaviest_rows(table, np.ones(len(table.token), bool), room - 4)  # a begun checkpoint
        table = freeze(*(column[kept] for column in thaw(table)), vocabulary=vocabulary)
    arrays = {name: array for name, array in table._asdict().items() if name != "decode"}
    return arrays, {"vocabulary": vocabulary}


def merge_trees(memories: Sequence[Memory], limit: int) -> Contents:
    """Learn the logs into a suffix tree of that limit."""
    depth = SuffixSettings().depth
    return {"text": _relearned(memories, lambda share: SuffixTree(depth=depth, limit=share), limit)}, {}


def merge_automata(memories: Sequence[Memory], limit: int) -> Contents:
    """Learn the logs into a suffix automaton of that limit."""
    return {"text": _relearned(memories, lambda share: SuffixAutomaton(limit=share), limit)}, {}


def merge_corpora(memories: Sequence[Memory], limit: int) -> Contents:
    """Put the blocks side by side, and learn past requests in the room that they leave.

    Raises:
        UnsupportedError: the blocks alone exceed the limit.
    """
    blocks: list[tuple[Array, Array]] = []
    for memory in memories:
        arrays = memory.arrays
        blocks += [(arrays[f"tokens-{i}"], arrays[f"places-{i}"]) for i in range(memory.facts["blocks"])]
    size = sum(tokens.nbytes + places.nbytes for tokens, places in blocks)
    if size > limit:
        raise _too_large(size, limit)
    settings = RestSettings()
    depth = settings.longest + settings.length
    merged = {"text": _relearned(memories, lambda share: SuffixTree(depth=depth, limit=share), limit - size)}
    for i, (tokens, places) in enumerate(blocks):
        merged |= {f"tokens-{i}": tokens, f"places-{i}": places}
    return merged, {"blocks": len(blocks)}


def merge_matrices(memories: Sequence[Memory], limit: int) -> Contents:
    """Take each token's row from the last file that knows it.

    Raises:
        UnsupportedError: the files keep different numbers of successors, or the matrix exceeds the limit.
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
        raise _too_large(merged.nbytes, limit)
    expected = first_hits(widths[0])
    hits = expected.copy()
    for memory in memories:
        successors = memory.arrays["successors"]
        known = np.flatnonzero(successors[:, 0] != UNKNOWN)
        merged[known] = successors[known]
        hits += memory.arrays["hits"] - expected
    return {"successors": merged, "hits": hits}, {"vocabulary": vocabulary}


def merge_bigrams(memories: Sequence[Memory], limit: int) -> Contents:
    """Add up the counts of all pairs and keep each token's most frequent successors.

    Raises:
        UnsupportedError: the model exceeds the limit.
    """
    vocabulary = max(memory.facts["vocabulary"] for memory in memories)
    successors, counts = new_bigrams(vocabulary)
    if successors.nbytes + counts.nbytes > limit:
        raise _too_large(successors.nbytes + counts.nbytes, limit)
    parts = []
    for memory in memories:
        before, place = np.nonzero(memory.arrays["counts"])
        parts.append((before, *(memory.arrays[name][before, place] for name in ("successors", "counts"))))
    before, token, count = _add_up(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    order = np.lexsort((token, -count, before))
    before, token, count = before[order], token[order], count[order]
    rank = np.arange(len(before)) - np.searchsorted(before, before)
    kept = rank < KEPT
    successors[before[kept], rank[kept]] = token[kept]
    counts[before[kept], rank[kept]] = np.minimum(count[kept], np.iinfo(np.int32).max)
    return {"successors": successors, "counts": counts}, {"vocabulary": vocabulary}


def table_of(memory: Memory) -> Frozen:
    """Return the table that a memory of the kind `trigram` holds."""
    return Frozen(**memory.arrays, decode=decode_table())


def _add_up(first: Array, second: Array, values: Array) -> tuple[Array, Array, Array]:
    """Sum the values Int[E] of equal pairs (first, second), sorted."""
    order = np.lexsort((second, first))
    first, second, values = first[order], second[order], values[order].astype(np.int64)
    if not len(first):
        return first, second, values
    starts = np.flatnonzero(np.append(True, (np.diff(first) != 0) | (np.diff(second) != 0)))
    return first[starts], second[starts], np.add.reduceat(values, starts)


def _relearned(memories: Sequence[Memory], make: Callable[[int], AnyIndex], limit: int) -> Int32:
    """Return the log of a history that has learned all documents: what a drafter of that limit would hold."""
    history = History(make, limit=limit)
    for memory in memories:
        for document in documents_of(memory.arrays["text"]):
            history.learn(document)
    return history.text


def _too_large(size: int, limit: int) -> UnsupportedError:
    return UnsupportedError(
        f"the merged memory takes {-(-size >> 20)} MB or more, the memory limit is {limit >> 20} MB. "
        "Raise the limit, or merge fewer files."
    )
