"""Max-Gram: copying first, bi-grams where nothing matches, and the memory they are kept in."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from rounds import budget, commit, start
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import CorruptMemoryError, FileError, ForeignMemoryError, UnsupportedError
from speculant.drafters.copying.maxgram import MaxGramDrafter, MaxGramSettings
from speculant.memory.file import write_memory
from tables import ids


def drafter(**options: object) -> MaxGramDrafter:
    """Return an empty drafter."""
    return MaxGramDrafter(**{"vocabulary": 1000, "tokenizer": "t", **options})


def test_the_longest_match_is_copied() -> None:
    """Matches have no length limit, and the published draft is a chain of ten."""
    text = [*range(100, 140), 60, 137, 138, 139, 70, *range(105, 140)]
    tree = drafter().open(start(ids(text))).propose(budget(64))
    assert tree.tokens.tolist() == [60, 137, 138, 139, 70, 105, 106, 107, 108, 109]
    assert tree.parents.tolist() == list(range(-1, 9))
    assert drafter().needs == RequestedOutputs()


def test_bigrams_where_nothing_matches() -> None:
    """Bi-grams of past requests follow a token that is new to this request; behind them matches are looked up again."""
    held = drafter()
    held.open(start([1, 2, 3, 4]))
    assert held.open(start([50, 1])).propose(budget(64)).tokens.tolist() == [2, 3, 4]
    assert held.open(start([3, 60, 61, 62, 63, 1])).propose(budget(5)).tokens.tolist() == [2, 3, 60, 61, 62]
    assert len(held.open(start([4])).propose(budget(64))) == 0


def test_the_most_frequent_successor_counts() -> None:
    """The rarest successor gives up its place; the frequent one stays whatever passes by."""
    held = drafter()
    for other in range(100, 400):
        held.open(start([1, 5]))
        held.open(start([1, other]))
    assert held.open(start([1])).propose(budget(1)).tokens.tolist() == [5]
    weight = float(held.open(start([1])).propose(budget(1)).weights[0])
    assert 0.4 < weight < 0.6


def test_every_token_is_learned_once() -> None:
    """A prompt and its rounds add up to the counts of the whole text."""
    text = np.random.default_rng(0).integers(0, 3, 60).astype(np.int32)
    whole, parts = drafter(), drafter()
    whole.open(start(text))
    session = parts.open(start(text[:20]))
    for at in range(20, 60, 4):
        session.propose(budget(4))
        commit(session, *text[at : at + 4].tolist())
    assert (whole._counts == parts._counts).all()
    assert whole._counts.sum() == 59


def test_weights_are_joint_probabilities() -> None:
    """They fall along the chain, and rise as copies turn out right."""
    held = drafter()
    session = held.open(start([*range(100, 300), 100]))
    first = session.propose(budget(10)).weights
    assert (np.diff(first) <= 0).all()
    for at in range(101, 291, 10):
        session.propose(budget(10))
        commit(session, *range(at, at + 10))
    assert session.propose(budget(10)).weights[0] > 0.9 > first[0]


def test_odd_requests() -> None:
    """No prompt, no budget, ids beyond the vocabulary, and a draft of any length."""
    held = drafter()
    session = held.open(start([]))
    assert len(session.propose(budget(8))) == 0
    commit(session, 7)
    commit(session, 7)
    assert len(session.propose(budget(0))) == 0
    assert session.propose(budget(3)).tokens.tolist() == [7, 7, 7]
    assert len(held.open(start([5000, 1, 6000])).propose(budget(8))) == 0
    long = drafter(settings=MaxGramSettings(drafted=10_000)).open(start([1, 2, 1])).propose(budget(10_000))
    assert long.tokens.tolist()[:4] == [2, 1, 2, 1]


def test_saved_and_loaded(tmp_path: Path) -> None:
    """What was learned comes back, under another padding of the vocabulary too."""
    held = drafter()
    held.open(start([1, 2, 3, 999]))
    held.save(tmp_path / "memory")
    for vocabulary in (1000, 1200, 500):
        loaded = drafter(vocabulary=vocabulary)
        loaded.load(tmp_path / "memory")
        expected = [2, 3, 999] if vocabulary > 999 else [2, 3]
        assert loaded.open(start([1])).propose(budget(8)).tokens.tolist() == expected
        loaded.open(start([7, 8]))


def test_files_that_are_not_this_drafters(tmp_path: Path) -> None:
    """Each has its own error, and nothing learned is lost."""
    held = drafter()
    held.open(start([1, 2]))
    drafter(tokenizer="other").save(tmp_path / "other")
    write_memory(tmp_path / "kind", kind="trigram", tokenizer="t", arrays={}, facts={})
    (tmp_path / "text").write_text("no memory")
    for name, error in (("other", ForeignMemoryError), ("kind", ForeignMemoryError), ("text", CorruptMemoryError)):
        with pytest.raises(error):
            held.load(tmp_path / name)
    with pytest.raises(FileError):
        held.load(tmp_path / "missing")
    assert held.open(start([1])).propose(budget(1)).tokens.tolist() == [2]


def test_the_limit() -> None:
    """The model has one size; a limit below it is refused with a way out, and learning takes no more."""
    assert drafter(memory_limit=32_000).memory_bytes == 32_000
    with pytest.raises(UnsupportedError, match=r"32000 bytes.*31999.*Raise the limit"):
        drafter(memory_limit=31_999)
    held = drafter()
    held.open(start(np.random.default_rng(0).integers(0, 1000, 50_000).astype(np.int32)))
    assert held.memory_bytes == 32_000


def test_threads_share_the_memory(tmp_path: Path) -> None:
    """Learning, drafting and saving at once loses no count."""
    held = drafter()
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            text = (np.random.default_rng(first).integers(0, 3, 2000) + first).astype(np.int32)
            session = held.open(start(text[:100]))
            for at in range(100, 2000, 4):
                assert set(session.propose(budget(16)).tokens.tolist()) <= {first, first + 1, first + 2}
                commit(session, *text[at : at + 4].tolist())
            held.save(tmp_path / str(first))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert held._counts.sum() == 3 * 1999
