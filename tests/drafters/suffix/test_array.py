"""Suffix arrays against sorting and searching by hand."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant.core.errors import UnsupportedError
from speculant.drafters.suffix.array import (
    MAX_VOCABULARY,
    SORTED,
    CorpusBlock,
    SuffixArrayBuilder,
    continuations,
    longest_match,
    sort_suffixes,
)
from speculant.drafters.suffix.history import END
from tables import ids

texts = st.lists(st.integers(0, 3), max_size=60)


def block_of(*documents: list[int]) -> CorpusBlock:
    tokens = ids([token for document in documents for token in (*document, END)])
    block = CorpusBlock(tokens, sort_suffixes(tokens))
    for array in block:
        array.flags.writeable = False  # as those of a file; for others numba would compile the kernels again
    return block


def places(tokens: list[int], pattern: list[int]) -> list[int]:
    return [i for i in range(len(tokens) - len(pattern) + 1) if tokens[i : i + len(pattern)] == pattern]


@given(st.lists(st.integers(END, 2), max_size=200))
def test_suffixes_are_sorted_as_far_as_any_search_looks(tokens: list[int]) -> None:
    """By 24 tokens, then by place; the end of the text sorts like END."""
    padded = [*tokens, *[END] * SORTED]
    expected = sorted(range(len(tokens)), key=lambda i: (padded[i : i + SORTED], i))
    assert sort_suffixes(ids(tokens)).tolist() == expected


def test_long_repetition_is_sorted() -> None:
    """Suffixes that differ beyond the depth of sorting keep their places' order."""
    assert sort_suffixes(np.zeros(100, np.int32))[-60:].tolist() == list(range(17, 77))


@given(st.lists(texts, min_size=1, max_size=4), st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(1, 3))
def test_the_longest_match_is_found(documents: list[list[int]], context: list[int], shortest: int) -> None:
    """The longest suffix that occurs, with exactly the places where it does."""
    block = block_of(*documents)
    length, begin, end = longest_match(block, ids(context), shortest)
    lengths = [n for n in range(shortest, len(context) + 1) if places(block.tokens.tolist(), context[-n:])]
    assert length == max(lengths, default=0)
    if length:
        assert sorted(block.places[begin:end].tolist()) == places(block.tokens.tolist(), context[-length:])
    else:
        assert begin == end


def test_continuations_end_with_their_document() -> None:
    """What stands behind END belongs to another document."""
    block = block_of([1, 2, 3, 4], [1, 2], [1, 2, 5])
    length, begin, end = longest_match(block, ids([1, 2]), 1)
    rows = np.empty((3, 3), np.int32)
    continuations(block, begin, end, length, rows)
    assert sorted(rows.tolist()) == sorted([[3, 4, END], [END, END, END], [5, END, END]])
    rows = np.empty((1, 2), np.int32)
    continuations(block, begin, end, length, rows)
    assert rows.tolist() == [[END, END]], "of several, the first in order"


@given(st.lists(texts, max_size=6), st.integers(3, 50))
def test_blocks_hold_every_document(documents: list[list[int]], size: int) -> None:
    """No block is larger than asked for, nothing is lost, and a document is cut only where a block ends."""
    with TemporaryDirectory() as folder:
        builder = SuffixArrayBuilder(4, Path(folder), block=size)
        for document in documents:
            builder.add(document)
        blocks = [CorpusBlock(np.array(block.tokens), np.array(block.places)) for block in builder.blocks()]
    assert builder.tokens == sum(map(len, documents))
    held = [token for block in blocks for token in block.tokens.tolist()]
    assert [token for token in held if token != END] == [token for document in documents for token in document]
    for block in blocks:
        assert 0 < len(block.tokens) <= size
        assert block.tokens[-1] == END
        assert block.places.tolist() == sort_suffixes(block.tokens).tolist()


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    """They would be sorted as others."""
    builder = SuffixArrayBuilder(4, tmp_path)
    for document in ([1, 4], [-1, 2]):
        with pytest.raises(ValueError, match="from 0 to 3"):
            builder.add(document)
    assert builder.blocks() == []
    with pytest.raises(UnsupportedError, match="token ids below"):
        SuffixArrayBuilder(MAX_VOCABULARY + 1, tmp_path)


def test_the_largest_ids_are_told_apart() -> None:
    """Three ids of 21 bits, END among them, do not touch each other."""
    top = MAX_VOCABULARY - 1
    assert sort_suffixes(ids([top, top, top - 1, END])).tolist() == [3, 2, 1, 0]
