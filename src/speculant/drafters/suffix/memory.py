"""Memory files of SuffixDecoding, SAM-Decoding and REST: logs of past requests, and for REST also a corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from speculant.core.tree import Array, Int32
from speculant.drafters.suffix import drafter, rest, sam
from speculant.drafters.suffix.automaton import SuffixAutomaton
from speculant.drafters.suffix.history import END, AnyIndex, PastTexts, documents_of
from speculant.drafters.suffix.tree import SuffixTree
from speculant.memory.file import Memory
from speculant.memory.kind import Contents, MemoryKind, merge_limit_error


def describe_log(memory: Memory) -> dict[str, int]:
    """Return the number of documents and tokens in a log."""
    documents, tokens = _count(memory.arrays["text"])
    return {"documents": documents, "tokens": tokens}


def describe_corpus(memory: Memory) -> dict[str, int]:
    """Return the number of documents and tokens in a corpus, and of past requests and their tokens."""
    corpus = [_count(array) for name, array in memory.arrays.items() if name.startswith("tokens-")]
    requests, tokens = _count(memory.arrays["text"])
    return {
        "corpus documents": sum(documents for documents, _ in corpus),
        "corpus tokens": sum(tokens for _, tokens in corpus),
        "past requests": requests,
        "tokens of past requests": tokens,
    }


def empty_log(memory: Memory) -> Contents:
    """Return an empty log."""
    return {"text": np.empty(0, np.int32)}, memory.facts


def empty_corpus(memory: Memory) -> Contents:
    """Return an empty corpus and an empty log."""
    return {"text": np.empty(0, np.int32)}, {**memory.facts, "blocks": 0}


def merge_trees(memories: Sequence[Memory], limit: int) -> Contents:
    """Add the documents of all logs to a suffix tree of at most `limit` bytes; the latest are kept."""
    depth = drafter.SuffixSettings().depth
    return {"text": _relearn(memories, lambda share: SuffixTree(depth=depth, limit=share), limit)}, {}


def merge_automata(memories: Sequence[Memory], limit: int) -> Contents:
    """Add the documents of all logs to a suffix automaton of at most `limit` bytes; the latest are kept."""
    return {"text": _relearn(memories, lambda share: SuffixAutomaton(limit=share), limit)}, {}


def merge_corpora(memories: Sequence[Memory], limit: int) -> Contents:
    """Keep the blocks of all corpora, and fit past requests into the remaining memory.

    Raises:
        UnsupportedError: the blocks alone exceed the limit.
    """
    blocks: list[tuple[Array, Array]] = []
    for memory in memories:
        arrays = memory.arrays
        blocks += [(arrays[f"tokens-{i}"], arrays[f"places-{i}"]) for i in range(memory.facts["blocks"])]
    size = sum(tokens.nbytes + places.nbytes for tokens, places in blocks)
    if size > limit:
        raise merge_limit_error(size, limit)
    settings = rest.RestSettings()
    depth = settings.longest + settings.length
    merged = {"text": _relearn(memories, lambda share: SuffixTree(depth=depth, limit=share), limit - size)}
    for i, (tokens, places) in enumerate(blocks):
        merged |= {f"tokens-{i}": tokens, f"places-{i}": places}
    return merged, {"blocks": len(blocks)}


def _relearn(memories: Sequence[Memory], make: Callable[[int], AnyIndex], limit: int) -> Int32:
    """Return the log after learning all documents: what a drafter with that limit would hold."""
    history = PastTexts(make, limit=limit)
    for memory in memories:
        for document in documents_of(memory.arrays["text"]):
            history.learn(document)
    return history.text


def _count(log: Array) -> tuple[int, int]:
    """Return the number of documents and tokens in a log."""
    documents = int(np.count_nonzero(log == END))
    return documents, len(log) - documents


SUFFIX_TREE = MemoryKind(name=drafter.KIND, describe=describe_log, empty=empty_log, merge=merge_trees)
SUFFIX_AUTOMATON = MemoryKind(name=sam.KIND, describe=describe_log, empty=empty_log, merge=merge_automata)
SUFFIX_ARRAY = MemoryKind(name=rest.KIND, describe=describe_corpus, empty=empty_corpus, merge=merge_corpora)
