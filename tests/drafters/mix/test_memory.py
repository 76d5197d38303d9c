"""Mix: nothing breaks its memory, and it never takes more than its limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from mixes import VOCABULARY, check, drafter, language, play, table_bytes, trees
from rounds import budget, commit, start
from speculant.core.errors import CorruptMemoryError, FileError, ForeignMemoryError, UnsupportedError
from speculant.drafters.mix import cells as cells_module
from speculant.drafters.mix import drafter as mix_module
from speculant.drafters.mix.cells import MAX_TOKENS, Cells, grow_cells
from speculant.drafters.mix.drafter import KIND
from speculant.memory.file import write_memory
from speculant.memory.pages import zeros
from trees import make_tree


def test_saved_and_loaded(tmp_path: Path) -> None:
    """A loaded memory drafts exactly as the one that was saved, and goes on learning as it does."""
    held, loaded = drafter(), drafter()
    trees(held, language(9, 400))
    trees(loaded, language(10, 100))
    held.save(tmp_path / "memory")
    loaded.load(tmp_path / "memory")
    assert loaded.memory_bytes == held.memory_bytes
    more = [language(seed, 80) for seed in (9, 11)]
    assert trees(loaded, *more) == trees(held, *more)
    again = drafter()
    again.load(tmp_path / "memory")
    again.save(tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == (tmp_path / "memory").read_bytes()


def test_files_that_are_not_this_drafters(tmp_path: Path) -> None:
    """Each is refused with its cause, and nothing is forgotten."""
    held, text = drafter(), language(12, 300)
    trees(held, text)
    held.save(tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    drafter(tokenizer="other").save(tmp_path / "tokenizer")
    drafter(vocabulary=500).save(tmp_path / "vocabulary")
    (tmp_path / "cut").write_bytes(good[: len(good) // 2])
    for name, at in (("head", 40), ("rows", len(good) // 3), ("end", len(good) - 70)):
        damaged = bytearray(good)
        damaged[at] ^= 4
        (tmp_path / name).write_bytes(damaged)
    (tmp_path / "text").write_text("no memory")
    write_memory(tmp_path / "kind", kind="trigram", tokenizer="t", arrays={}, facts={})
    arrays = {f"mixer.{name}": array[:1] for name, array in held._tables.mixer._asdict().items()}
    write_memory(tmp_path / "old", kind=KIND, tokenizer="t", arrays=arrays, facts={"vocabulary": VOCABULARY})
    refused: list[tuple[str, type[Exception], str]] = [
        ("tokenizer", ForeignMemoryError, "another tokenizer"),
        ("vocabulary", UnsupportedError, "500 tokens, but this model's has 1000"),
        ("kind", ForeignMemoryError, "kind 'trigram'"),
        ("old", ForeignMemoryError, "version"),
        ("cut", CorruptMemoryError, "cut short"),
        ("head", CorruptMemoryError, "damaged"),
        ("rows", CorruptMemoryError, "damaged"),
        ("end", CorruptMemoryError, "damaged"),
        ("text", CorruptMemoryError, "not a Speculant memory"),
        ("nothing", FileError, "no memory file"),
    ]
    for name, error, message in refused:
        with pytest.raises(error, match=message):
            held.load(tmp_path / name)
    held.save(tmp_path / "after")
    assert (tmp_path / "after").read_bytes() == good
    assert play(held, text).mat > 10


def test_growing_is_compiled_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request waits for a compiler because it is the first to fill a table."""
    grew: list[bool] = []

    def noting(cells: Cells, limit: int) -> Cells:
        larger = grow_cells(cells, limit)
        grew.append(larger is not cells)
        return larger

    monkeypatch.setattr(mix_module, "grow_cells", noting)
    drafter()
    assert grew == [True]


def test_a_memory_larger_than_the_limit(tmp_path: Path) -> None:
    """It is refused with a way out, and the drafter goes on with what it has."""
    large, small = drafter(memory_limit=8 << 20), drafter(memory_limit=1 << 20)
    large.open(start(np.random.default_rng(13).integers(0, VOCABULARY, 60_000).astype(np.int32)))
    assert table_bytes(large) > 1 << 20
    large.save(tmp_path / "memory")
    before = trees(small, language(13, 60))
    with pytest.raises(UnsupportedError, match=r"takes \d MB, but the memory limit is 1 MB. Raise the limit"):
        small.load(tmp_path / "memory")
    assert trees(drafter(memory_limit=1 << 20), language(13, 60)) == before
    check(small.open(start(language(13, 60))).propose(budget(8)), 8)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """A save that fails leaves the old file and the drafter as they were."""
    held, text = drafter(), language(14, 200)
    held.save(tmp_path / "memory")
    old = (tmp_path / "memory").read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, moment, fail)
    trees(held, text)
    with pytest.raises(FileError, match="No space left"):
        held.save(tmp_path / "memory")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["memory"]
    assert (tmp_path / "memory").read_bytes() == old
    assert play(held, text).mat > 10
    held.save(tmp_path / "memory")


CHILD = """
import os, signal, sys
from pathlib import Path
from speculant.drafters.mix.drafter import MixDrafter
held = MixDrafter(vocabulary=1000, tokenizer="t", memory_limit=8 << 20)
held.load(Path(sys.argv[1]))
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
held.save(Path(sys.argv[1]))
"""


def test_killed_while_saving(tmp_path: Path) -> None:
    """After kill -9 the old memory is there and drafts as before."""
    held, text = drafter(), language(15, 200)
    trees(held, text)
    held.save(tmp_path / "memory")
    command = [sys.executable, "-c", CHILD, str(tmp_path / "memory")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
    loaded = drafter()
    loaded.load(tmp_path / "memory")
    assert trees(loaded, text[:60]) == trees(held, text[:60])


def test_the_limit_is_one() -> None:
    """Random ids, the worst there is, never take more; the mixture, of a fixed size, comes on top."""
    held, random = drafter(memory_limit=1 << 20, vocabulary=30_000), np.random.default_rng(16)
    fixed = sum(array.nbytes for array in held._tables.mixer)
    assert fixed < 9 * 30_000 + 2 * 65_536
    for _ in range(10):
        session = held.open(start(random.integers(0, 30_000, 29_700).astype(np.int32)))
        for _ in range(30):
            commit(session, *random.integers(0, 30_000, 10).tolist())
            assert table_bytes(held) <= 1 << 20
        check(session.propose(budget(64)), 64, 30_000)
    assert table_bytes(held) > 1 << 19
    assert sum(array.nbytes for array in held._tables.mixer) == fixed
    text = language(16, 300)
    play(held, text)
    assert play(held, text).mat > 5


@pytest.mark.parametrize("limit", [1 << 20, 4 << 20, 6_000_000, 8 << 20])
def test_the_limit_holds_while_a_table_doubles(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new table, the one that it is made from and the other fit together, and no older one is kept beside them."""
    made: list[weakref.ref[np.ndarray]] = []
    peaks: list[int] = []

    def counted(shape: tuple[int, ...], dtype: type) -> np.ndarray:
        array = zeros(shape, dtype)
        made.append(weakref.ref(array))
        peaks.append(sum(alive.nbytes for each in made if (alive := each()) is not None))
        return array

    def measured(cells: Cells, share: int) -> Cells:
        before = len(peaks)
        larger = grow_cells(cells, share)
        assert peaks[before:] == [] or max(peaks[before:]) <= limit
        return larger

    monkeypatch.setattr(cells_module, "zeros", counted)
    monkeypatch.setattr(mix_module, "grow_cells", measured)
    held, random = drafter(memory_limit=limit, vocabulary=30_000), np.random.default_rng(19)
    for _ in range(8):
        held.open(start(random.integers(0, 30_000, 20_000).astype(np.int32)))
    assert len(peaks) >= 4 + 2 * (limit > 1 << 20)  # at first, to warm up, and each doubling
    assert 3 / 8 * limit < table_bytes(held) <= limit


@pytest.mark.parametrize("limit", [0, 3072, 10_000])
def test_hardly_any_memory(limit: int) -> None:
    """With next to no room drafts are worse, not wrong; a bucket of each table is the least there is."""
    held = drafter(memory_limit=limit)
    for draft in trees(held, language(17, 200)):
        check(make_tree(*draft), 16)
    assert table_bytes(held) <= max(limit, 896 + 48)


def test_the_limit_holds_for_what_is_loaded(tmp_path: Path) -> None:
    """A file with one table larger than its share leaves the other less room to grow."""
    random = np.random.default_rng(18)
    large = drafter(vocabulary=5000)
    large.open(start(random.integers(0, 250, 60_000).astype(np.int32)))
    large.save(tmp_path / "memory")
    limit = int(1.02 * table_bytes(large))
    held = drafter(vocabulary=5000, memory_limit=limit)
    held.load(tmp_path / "memory")
    assert table_bytes(held) == table_bytes(large)
    held.open(start(random.integers(0, 5000, 60_000).astype(np.int32)))
    assert table_bytes(held) <= limit


def test_threads_share_the_memory(tmp_path: Path) -> None:
    """Learning, drafting, saving and loading at once corrupts nothing: drafts are trees of tokens that were learned."""
    held = drafter(vocabulary=10_000)
    texts = [(language(i, 1500, 40) + 100 * i).astype(np.int32) for i in range(3)]
    learned = set(np.concatenate(texts).tolist())
    held.save(tmp_path / "empty")
    failures: list[BaseException] = []

    def work(text: np.ndarray, path: Path) -> None:
        try:
            session = held.open(start(text[:100]))
            for at in range(100, len(text), 4):
                tree = session.propose(budget(32))
                check(tree, 32, 10_000)
                assert set(tree.tokens.tolist()) <= learned
                commit(session, *text[at : at + 4].tolist())
                if at % 500 == 0:
                    held.save(path)
                    held.load(path)
            session.close()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(text, tmp_path / str(i))) for i, text in enumerate(texts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for entries in (held._tables.narrow.entries, held._tables.wide.entries):
        tokens = entries[(entries >> 20 & 127) > 0] & (MAX_TOKENS - 1)
        assert set(tokens.tolist()) <= learned
    assert np.isfinite(held._tables.mixer.weights).all()


@pytest.mark.parametrize("fault", ["token", "width", "bits", "number", "band"])
def test_an_intact_file_may_not_mislead_the_kernels(fault: str, tmp_path: Path) -> None:
    """Kernels check no index, so what could lead them outside their arrays is refused before they see it."""
    held, fresh = drafter(), drafter()
    play(held, language(3, 300))
    table = held._tables
    if fault == "token":
        table.narrow.entries[0, 0, 0] |= np.uint32(MAX_TOKENS - 1)
    elif fault == "bits":
        table.wide.facts[1] += 1
    elif fault == "number":
        table.mixer.weights[0, 0] = np.nan
    elif fault == "band":
        table.mixer.bands[5] = 200
    else:
        wider = np.zeros((*table.wide.entries.shape[:2], 30), np.uint32)
        held._tables = table._replace(wide=table.wide._replace(entries=wider))
    held.save(tmp_path / "m")
    with pytest.raises(CorruptMemoryError, match="never writes"):
        fresh.load(tmp_path / "m")
