"""Merging: both texts are known afterwards, and what does not fit goes by the kind's own rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memories import KEPT, VOCABULARY, drafted, learned
from speculant.api.memory_kinds import find_memory_kind
from speculant.core.errors import UnsupportedError
from speculant.drafters.aded import memory as trigram
from speculant.drafters.aded.frozen import thaw
from speculant.drafters.recycling.drafter import RecyclingSettings, prior_hits
from speculant.drafters.suffix.array import CorpusBlock, sort_suffixes
from speculant.drafters.suffix.history import documents_of
from speculant.drafters.suffix.rest import save_corpus
from speculant.memory.file import Memory, read_any_memory, write_memory
from tables import ids

LIMIT = 64 << 20
FIRST, SECOND = [*range(10, 20)] * 3, [*range(30, 40)] * 3


def merged(path: Path, *memories: Memory, limit: int = LIMIT) -> Path:
    """Merge memories into a file."""
    arrays, facts = find_memory_kind(memories[0].kind).merge(memories, limit)
    write_memory(path, kind=memories[0].kind, tokenizer="t", arrays=arrays, facts=facts)
    return path


def weights(memory: Memory) -> dict[tuple[int, int, int], int]:
    """Return the weights of a table's n-grams."""
    a, b, c, weight = thaw(trigram.table_of(memory))
    return {(x, y, z): n for x, y, z, n in zip(a.tolist(), b.tolist(), c.tolist(), weight.tolist(), strict=True)}


def documents(path: Path) -> list[list[int]]:
    """Return the documents of a log."""
    return [document.tolist() for document in documents_of(read_any_memory(path).arrays["text"])]


@pytest.mark.parametrize("method", KEPT)
def test_both_texts_are_known(method: str, tmp_path: Path) -> None:
    """A drafter that begins with the merged file goes on after either text as one that has learned it would."""
    path = merged(tmp_path / "m", learned(tmp_path, method, FIRST), learned(tmp_path, method, SECOND))
    assert drafted(path, method, [9, 11, 12])[0] == 13
    assert drafted(path, method, [9, 31, 32])[0] == 33


@pytest.mark.parametrize("method", KEPT)
def test_an_empty_memory_adds_nothing(method: str, tmp_path: Path) -> None:
    """Merged with an empty one, a memory stays as it is, whichever comes first."""
    full, empty = learned(tmp_path, method, FIRST, SECOND), learned(tmp_path, method)
    for pair in ([full, empty], [empty, full]):
        memory = read_any_memory(merged(tmp_path / "m", *pair))
        assert memory.facts == full.facts
        assert set(memory.arrays) == set(full.arrays)
        for name, array in memory.arrays.items():
            assert np.allclose(array, full.arrays[name], rtol=1e-6, atol=1e-6), name


@pytest.mark.parametrize("method", KEPT)
def test_merging_is_deterministic(method: str, tmp_path: Path) -> None:
    """The same files give the same file, byte by byte."""
    memories = learned(tmp_path, method, FIRST), learned(tmp_path, method, SECOND)
    assert merged(tmp_path / "m", *memories).read_bytes() == merged(tmp_path / "n", *memories).read_bytes()


def test_weights_of_trigrams_add_up(tmp_path: Path) -> None:
    """What three files have seen weighs three times as much, up to the two per cent of the code."""
    once = learned(tmp_path, "aded", FIRST[:12])
    thrice = weights(read_any_memory(merged(tmp_path / "m", once, once, once)))
    assert set(thrice) == set(weights(once))
    for key, weight in weights(once).items():
        assert abs(thrice[key] - 3 * weight) <= 0.03 * 3 * weight + 1


def test_the_heaviest_rows_of_trigrams_stay(tmp_path: Path) -> None:
    """A table over the limit loses its lightest rows and then fits; an index that does not fit is refused."""
    often, seldom = learned(tmp_path, "aded", *[FIRST] * 4), learned(tmp_path, "aded", range(30, 56))
    whole = trigram.merge([often, seldom], LIMIT)[0]
    limit = sum(array.nbytes for array in whole.values()) - 150
    memory = read_any_memory(merged(tmp_path / "m", seldom, often, limit=limit))
    assert sum(array.nbytes for array in memory.arrays.values()) <= limit
    assert set(weights(often)) <= set(weights(memory)) < set(weights(often)) | set(weights(seldom))
    with pytest.raises(UnsupportedError, match="Raise the limit"):
        trigram.merge([often, seldom], 100)


@pytest.mark.parametrize("method", ["aded", "maxgram", "recycling"])
def test_differently_padded_vocabularies(method: str, tmp_path: Path) -> None:
    """Models of one tokenizer share what they learned; the merged file has room for the ids of the larger one."""
    small, large = learned(tmp_path, method, FIRST), learned(tmp_path, method, SECOND, vocabulary=VOCABULARY + 4)
    for pair in ([small, large], [large, small]):
        path = merged(tmp_path / "m", *pair)
        assert read_any_memory(path).facts["vocabulary"] == VOCABULARY + 4
        assert drafted(path, method, [9, 11, 12])[0] == 13
        assert drafted(path, method, [9, 31, 32], vocabulary=VOCABULARY + 4)[0] == 33


@pytest.mark.parametrize("method", ["suffix", "sam", "rest"])
def test_the_latest_documents_stay(method: str, tmp_path: Path) -> None:
    """Logs keep their order; under a limit the merged file holds the end of it, as a drafter of that limit would."""
    texts = [np.random.default_rng(i).permutation(50).tolist() for i in range(12)]
    memories = learned(tmp_path, method, *texts[:6]), learned(tmp_path, method, *texts[6:])
    skipped = 1 if method == "suffix" else 0  # it learns outputs alone
    assert documents(merged(tmp_path / "m", *memories)) == [text[skipped:] for text in texts]
    kept = documents(merged(tmp_path / "m", *memories, limit=30_000))
    assert 0 < sum(map(len, kept)) < 600
    assert kept[-1] == texts[-1][skipped:]


def test_corpora_stand_side_by_side(tmp_path: Path) -> None:
    """Every block is searched; blocks that exceed the limit are refused, since none is dropped by itself."""
    memories = []
    for text in (FIRST, SECOND):
        tokens = ids([*text, -1])
        save_corpus(
            tmp_path / "corpus", [CorpusBlock(tokens, sort_suffixes(tokens))], tokenizer="t", text=ids([1, 2, 3, -1])
        )
        memories.append(read_any_memory(tmp_path / "corpus"))
    path = merged(tmp_path / "m", *memories)
    assert read_any_memory(path).facts["blocks"] == 2
    assert documents(path) == [[1, 2, 3]] * 2
    assert drafted(path, "rest", [9, 11, 12])[0] == 13
    assert drafted(path, "rest", [9, 31, 32])[0] == 33
    with pytest.raises(UnsupportedError, match="Raise the limit"):
        merged(path, *memories, limit=400)


def test_the_last_file_that_knows_a_token_gives_its_row(tmp_path: Path) -> None:
    """Recycled rows are the target's last word; how often each rank was right adds up."""
    first, second = learned(tmp_path, "recycling", [1, 2, 3, 4, 1, 2]), learned(tmp_path, "recycling", [1, 5, 6])
    memory = read_any_memory(merged(tmp_path / "m", first, second))
    assert memory.arrays["successors"][1, 0] == 5
    assert memory.arrays["successors"][3, 0] == 4
    gained = sum(each.arrays["hits"] - prior_hits(8) for each in (first, second))
    assert np.allclose(memory.arrays["hits"] - prior_hits(8), gained)


def test_matrices_of_different_settings_are_refused(tmp_path: Path) -> None:
    """Rows of two and of eight successors make no matrix."""
    narrow = learned(tmp_path, "recycling", settings=RecyclingSettings(successors=2))
    with pytest.raises(UnsupportedError, match="2, 8"):
        merged(tmp_path / "m", narrow, learned(tmp_path, "recycling"))


@pytest.mark.parametrize("method", ["maxgram", "recycling"])
def test_matrices_over_the_limit_are_refused(method: str, tmp_path: Path) -> None:
    """Their size is the vocabulary's, so there is nothing that could go."""
    memory = learned(tmp_path, method, FIRST)
    with pytest.raises(UnsupportedError, match="Raise the limit"):
        merged(tmp_path / "m", memory, memory, limit=1000)


def test_the_most_frequent_bigrams_stay(tmp_path: Path) -> None:
    """Counts of both files add up before the four heaviest are chosen, and cannot overflow."""

    def bigrams(**counted: Any) -> Memory:
        arrays = {name: np.zeros((3, 4), np.int32) for name in ("successors", "counts")}
        for name, row in counted.items():
            arrays[name][1] = row
        return Memory(kind="bigram", tokenizer="t", arrays=arrays, facts={"vocabulary": 3})

    maximum = np.iinfo(np.int32).max
    first = bigrams(successors=[7, 8, 9, 10], counts=[maximum, 5, 3, 2])
    second = bigrams(successors=[9, 7, 11, 0], counts=[4, 3, 1, 0])
    arrays, _ = find_memory_kind(first.kind).merge([first, second], LIMIT)
    assert arrays["successors"][1].tolist() == [7, 9, 8, 10]
    assert arrays["counts"][1].tolist() == [maximum, 7, 5, 2]
    assert not arrays["counts"][[0, 2]].any()
