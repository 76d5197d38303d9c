"""The bounded log of past requests: what stays, what goes, and what a file keeps."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from rounds import budget, start
from speculant.core.drafter import EMPTY_PATH, Session, Verified
from speculant.core.errors import CorruptMemoryError, FileError, ForeignMemoryError, UnsupportedError
from speculant.drafters.suffix.automaton import SuffixAutomaton
from speculant.drafters.suffix.drafter import SuffixDrafter
from speculant.drafters.suffix.history import END, HistoryDrafter, Learning, PastTexts, check_vocabulary, documents_of
from speculant.drafters.suffix.sam import SamDrafter
from speculant.drafters.suffix.tree import SuffixTree
from speculant.memory.file import write_memory
from tables import ids

LIMIT = 200_000
Either = SuffixTree | SuffixAutomaton


def history(kind: str, limit: int = LIMIT) -> PastTexts[Either]:
    """Return an empty history over either index."""
    return PastTexts(
        lambda share: SuffixTree(depth=8, limit=share) if kind == "tree" else SuffixAutomaton(limit=share), limit=limit
    )


class Remembering(HistoryDrafter[Either]):
    """Remembers documents and drafts nothing."""

    def __init__(self, kind: str, *, limit: int = LIMIT, file: str = "k", tokenizer: str = "t") -> None:
        self._index, self.kind = kind, file
        super().__init__(vocabulary=100_000, tokenizer=tokenizer, memory_limit=limit)

    def _empty(self, limit: int) -> PastTexts[Either]:
        return history(self._index, limit)


def documents(held: PastTexts[Either]) -> list[list[int]]:
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
def test_a_generation_does_not_grow_beside_an_old_one(kind: str) -> None:
    """A copy would need room that there is not; a new generation begins with all of it."""
    random = np.random.default_rng(3)
    held = history(kind)
    room, turns, young = 0, 0, held.young
    for _ in range(200):
        held.learn(random.integers(0, 50_000, 100).astype(np.int32))
        if held.young is not young:
            turns, young, room = turns + 1, held.young, held.young.nbytes
        assert not turns or 0.49 * LIMIT < held.young.nbytes == room <= LIMIT / 2
    assert turns > 3


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
    held, again = Remembering(kind), Remembering(kind)
    for document in ([1, 2, 3], [], [4], [5, 6, 5, 6]):
        held.learn(ids(document))
    held.save(tmp_path / "m")
    again.load(tmp_path / "m")
    assert documents(again._history) == documents(held._history) == [[1, 2, 3], [4], [5, 6, 5, 6]]


def test_a_file_larger_than_the_limit_leaves_its_latest(tmp_path: Path) -> None:
    """A smaller limit than the one it was saved under is no error."""
    held, again = Remembering("tree", limit=10 * LIMIT), Remembering("tree")
    for i in range(100):
        held.learn(np.arange(i * 100, i * 100 + 100, dtype=np.int32))
    held.save(tmp_path / "m")
    again.load(tmp_path / "m")
    assert again.memory_bytes <= LIMIT
    assert again._history.text[-2:].tolist() == [9999, END]
    assert len(again._history.text) < len(held._history.text)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """Missing, damaged and foreign files have errors of their own, and nothing is learned from them."""
    held, fresh = Remembering("tree"), Remembering("tree")
    held.learn(ids([1, 2, 3]))
    held.save(tmp_path / "m")
    with pytest.raises(FileError):
        fresh.load(tmp_path / "none")
    for foreign in (Remembering("tree", file="other"), Remembering("tree", tokenizer="other")):
        with pytest.raises(ForeignMemoryError):
            foreign.load(tmp_path / "m")
        assert documents(foreign._history) == []
    whole = (tmp_path / "m").read_bytes()
    for damaged in (whole[:-60], whole[:-64] + bytes([whole[-64] ^ 1]) + whole[-63:]):
        (tmp_path / "m").write_bytes(damaged)
        with pytest.raises(CorruptMemoryError):
            fresh.load(tmp_path / "m")
    assert documents(fresh._history) == []


def test_a_log_without_an_end_loses_its_open_document(tmp_path: Path) -> None:
    """Every document of a log is ended; what stands behind the last END was never whole."""
    write_memory(tmp_path / "m", kind="k", tokenizer="t", arrays={"text": ids([1, 2, END, 3])}, facts={})
    held = Remembering("tree")
    held.load(tmp_path / "m")
    assert documents(held._history) == [[1, 2]]


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


@pytest.mark.parametrize(("method", "learned"), [(SuffixDrafter, 15), (SamDrafter, 35)])
def test_threads_share_it(method: type[SuffixDrafter | SamDrafter], learned: int) -> None:
    """Requests that run at the same time lose nothing and corrupt nothing; closing twice learns once."""
    held = method(vocabulary=100)
    failed: list[BaseException] = []

    def commit(session: Session, tokens: np.ndarray) -> None:
        tree = session.propose(budget(16))
        session.observe(Verified(tree=tree, path=EMPTY_PATH, tokens=tokens))

    def work(seed: int) -> None:
        try:
            random = np.random.default_rng(seed)
            for _ in range(30):
                session = held.open(start(random.integers(0, 9, 20).astype(np.int32)))
                for _ in range(5):
                    commit(session, random.integers(0, 9, 3).astype(np.int32))
                session.close()
                session.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(held._history.text) == 4 * 30 * (learned + 1)


@pytest.mark.parametrize("method", [SuffixDrafter, SamDrafter])
def test_too_many_ids_are_refused(method: type[SuffixDrafter | SamDrafter]) -> None:
    """They would be taken for others."""
    with pytest.raises(UnsupportedError):
        method(vocabulary=1 << 25)
