"""The bounded log of past requests: what stays, what goes, and what a file keeps."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from speculant.drafters.history import (
    END,
    History,
    Learning,
    check_vocabulary,
    documents_of,
    load_history,
    save_history,
)
from speculant.drafters.memory_file import write_memory
from speculant.drafters.suffix_automaton import SuffixAutomaton
from speculant.drafters.suffix_tree import SuffixTree
from speculant.errors import CorruptMemoryError, FileError, ForeignMemoryError, UnsupportedError
from tables import ids

LIMIT = 200_000
Either = SuffixTree | SuffixAutomaton


def history(kind: str, limit: int = LIMIT) -> History[Either]:
    """Return an empty history over either index."""
    return History(
        lambda share: SuffixTree(depth=8, limit=share) if kind == "tree" else SuffixAutomaton(limit=share), limit=limit
    )


def documents(held: History[Either]) -> list[list[int]]:
    return [document.tolist() for document in documents_of(held.text)]


@pytest.mark.parametrize("kind", ["tree", "automaton"])
def test_the_limit_is_hard_and_the_latest_stays(kind: str) -> None:
    """Random text, the worst case, never takes more than the limit, and the end of it is always there."""
    random = np.random.default_rng(0)
    held = history(kind)
    for _ in range(60):
        document = random.integers(0, 50_000, 300).astype(np.int32)
        held.learn(document)
        assert held.nbytes <= LIMIT
        assert held.text[-1] == END
        assert held.text[held.text != END][-300:].tolist() == document.tolist()
    assert held.nbytes > LIMIT / 3, "what is allowed is used"


@pytest.mark.parametrize("kind", ["tree", "automaton"])
def test_repetition_does_not_exceed_the_limit(kind: str) -> None:
    """Endless loops are the other extreme of text; both indexes must bear them."""
    held = history(kind)
    for period in (1, 2, 7):
        held.learn(np.tile(np.arange(period, dtype=np.int32), 20_000 // period))
        assert held.nbytes <= LIMIT


@pytest.mark.parametrize("kind", ["tree", "automaton"])
def test_a_document_larger_than_the_limit_leaves_its_end(kind: str) -> None:
    """A long request must neither be refused nor break the bound."""
    held = history(kind)
    held.learn(np.arange(100_000, dtype=np.int32))
    assert held.nbytes <= LIMIT
    assert held.text[-2:].tolist() == [99_999, END]


@pytest.mark.parametrize("kind", ["tree", "automaton"])
@pytest.mark.parametrize("limit", [0, 100, 5000])
def test_a_limit_too_small_for_anything(kind: str, limit: int) -> None:
    """The drafter then just remembers nothing."""
    held = history(kind, limit)
    held.learn(np.arange(1000, dtype=np.int32))
    assert documents(held) == []


@pytest.mark.parametrize("kind", ["tree", "automaton"])
def test_a_file_gives_the_same_documents(kind: str, tmp_path: Path) -> None:
    """Saving and loading keeps documents, their bounds and their order; empty ones are none."""
    held = history(kind)
    for document in ([1, 2, 3], [], [4], [5, 6, 5, 6]):
        held.learn(ids(document))
    save_history(tmp_path / "m", held, kind="k", tokenizer="t")
    again = history(kind)
    load_history(tmp_path / "m", again, kind="k", tokenizer="t")
    assert documents(again) == documents(held) == [[1, 2, 3], [4], [5, 6, 5, 6]]


def test_a_file_larger_than_the_limit_leaves_its_latest(tmp_path: Path) -> None:
    """A smaller limit than the one it was saved under is no error."""
    held = history("tree", 10 * LIMIT)
    for i in range(100):
        held.learn(np.arange(i * 100, i * 100 + 100, dtype=np.int32))
    save_history(tmp_path / "m", held, kind="k", tokenizer="t")
    again = history("tree")
    load_history(tmp_path / "m", again, kind="k", tokenizer="t")
    assert again.nbytes <= LIMIT
    assert again.text[-2:].tolist() == [9999, END]
    assert len(again.text) < len(held.text)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """Missing, damaged and foreign files are told apart, and nothing is learned from them."""
    held = history("tree")
    held.learn(ids([1, 2, 3]))
    save_history(tmp_path / "m", held, kind="k", tokenizer="t")
    fresh = history("tree")
    with pytest.raises(FileError):
        load_history(tmp_path / "none", fresh, kind="k", tokenizer="t")
    for kind, tokenizer in (("other", "t"), ("k", "other")):
        with pytest.raises(ForeignMemoryError):
            load_history(tmp_path / "m", fresh, kind=kind, tokenizer=tokenizer)
    whole = (tmp_path / "m").read_bytes()
    for damaged in (whole[:-60], whole[:-64] + bytes([whole[-64] ^ 1]) + whole[-63:]):
        (tmp_path / "m").write_bytes(damaged)
        with pytest.raises(CorruptMemoryError):
            load_history(tmp_path / "m", fresh, kind="k", tokenizer="t")
    assert documents(fresh) == []


def test_a_log_without_an_end_loses_its_open_document(tmp_path: Path) -> None:
    """Every document of a log is ended; what stands behind the last END was never whole."""
    write_memory(tmp_path / "m", kind="k", tokenizer="t", arrays={"text": ids([1, 2, END, 3])}, facts={})
    held = history("tree")
    load_history(tmp_path / "m", held, kind="k", tokenizer="t")
    assert documents(held) == [[1, 2]]


def test_learning_by_turns() -> None:
    """Documents that are learned at the same time do not mix, and the lock is free between their pieces."""
    held, learning = history("tree", 1 << 24), Learning()
    texts = [np.full(5000, i, np.int32) for i in range(4)]
    threads = [threading.Thread(target=learning.learn, args=(held, text)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        with learning.lock:
            assert len(held.text) <= 4 * 5001
    assert sorted(documents(held)) == [text.tolist() for text in texts]


def test_huge_vocabularies_are_refused() -> None:
    """Larger ids would be cut off."""
    check_vocabulary(1 << 24)
    with pytest.raises(UnsupportedError, match="below 16777216"):
        check_vocabulary((1 << 24) + 1)
