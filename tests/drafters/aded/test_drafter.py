"""The default drafter: what it learns, keeps, and shares between requests and threads."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from rounds import budget, start
from speculant.core.drafter import EMPTY_PATH, Persistent, Session, Verified
from speculant.core.engine import Needs
from speculant.core.errors import CorruptMemoryError, FileError, ForeignMemoryError, UnsupportedError
from speculant.core.tree import DraftTree
from speculant.drafters.aded import puct
from speculant.drafters.aded import table as trigram_table
from speculant.drafters.aded.drafter import (
    AdedDrafter,
    AdedPaperDrafter,
    AdedSettings,
    load_table,
    save_table,
)
from speculant.drafters.aded.frozen import freeze, thaw
from speculant.drafters.aded.rows import MAX_VOCABULARY, NONE, UNIT
from speculant.memory.file import write_memory
from tables import NaiveTable, contexts_of, ids, row_of
from trees import make_tree, paths_of

VOCABULARY = 1000


def drafter(**options: object) -> AdedDrafter:
    """Return an empty drafter."""
    return AdedDrafter(**{"vocabulary": VOCABULARY, "tokenizer": "t", **options})


def commit(session: Session, *tokens: int) -> None:
    """Commit tokens to a session."""
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=ids(tokens)))


def language(seed: int, length: int, vocabulary: int = VOCABULARY) -> np.ndarray:
    """Return a text in which a few tokens follow each, as in any language."""
    random = np.random.default_rng(seed)
    text = random.zipf(1.3, length) % vocabulary
    for i in np.flatnonzero(random.random(length) < 0.7):
        text[i] = (text[i - 1] * 31 + text[i] % 3) % vocabulary
    return text.astype(np.int32)


def columns(rows: dict[tuple[int, int], dict[int, int]]) -> list[np.ndarray]:
    """Return rows as the columns that `freeze` takes."""
    entries = [(a, b, c, weight) for (a, b), row in rows.items() for c, weight in row.items()]
    return list(np.array(entries, np.int64).reshape(-1, 4).T)


def test_kernels_are_compiled_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request waits for a compiler because it is the first to fill a table, or to search as published."""
    used: list[str] = []
    monkeypatch.setattr(trigram_table, "copy_rows", lambda *_: used.append("grow"))
    monkeypatch.setattr(puct, "puct", lambda *_: used.append("search"))
    drafter()
    AdedPaperDrafter(vocabulary=VOCABULARY, tokenizer="t")
    assert used == ["grow", "grow", "search"]


def test_the_whole_prompt_is_learned() -> None:
    """A long prompt is known from its first token on, before anything is generated."""
    held = drafter()
    session = held.open(start([*range(100, 140), 100, 101]))
    assert session.propose(budget(8)).tokens.tolist() == list(range(102, 110))


def test_a_prompt_of_one_token() -> None:
    """Where the official drafter ends the process: nothing is drafted at first, then bi-grams help."""
    held = drafter()
    session = held.open(start([5]))
    assert len(session.propose(budget(8))) == 0
    commit(session, 6)
    commit(session, 5)
    assert session.propose(budget(8)).tokens.tolist()[:2] == [6, 5]
    assert held.open(start([5])).propose(budget(1)).tokens.tolist() == [6]


def test_an_empty_prompt() -> None:
    """Engines may start with an empty prompt; the drafter then drafts nothing."""
    session = drafter().open(start([]))
    assert len(session.propose(budget(8))) == 0
    commit(session, 1)
    commit(session, 2, 1)
    assert session.propose(budget(1)).tokens.tolist() == [2]


def test_every_token_is_learned_once() -> None:
    """Prompt and rounds of any length add up to the table of the whole text."""
    random = np.random.default_rng(0)
    held, naive = drafter(), NaiveTable(AdedSettings().rule())
    for _ in range(5):
        text = random.integers(0, 6, 60).tolist()
        session = held.open(start(ids(text[:20])))
        at = 20
        while at < 60:
            step = int(random.integers(1, 5))
            session.propose(budget(4))
            commit(session, *text[at : at + step])
            at += step
        session.close()
        naive.learn(text)
    assert contexts_of(held._table) == set(naive.rows)
    for (a, b), row in naive.rows.items():
        assert row_of(held._table, a, b) == row


def test_the_targets_best_tokens_are_learned() -> None:
    """Every row of a pass is learned for its own context, rejected nodes too; the first row is the root's."""
    held = drafter(settings=AdedSettings(top_k=2, strength=3.0))
    session = held.open(start([10, 11]))
    tree = make_tree([21, 22, 23, 24], [-1, -1, 0, 2])
    best = ids(range(100, 110)).reshape(5, 2)
    logits = np.log(np.array([[0.5, 0.25]] * 5, np.float32))
    path, tokens = ids([0, 2]), ids([21, 23, 99])
    session.observe(Verified(tree=tree, path=path, tokens=tokens, top_ids=best, top_logits=logits))
    contexts = [(10, 11), (11, 21), (11, 22), (21, 23), (23, 24)]
    for row, (a, b) in enumerate(contexts):
        learned = dict(row_of(held._table, a, b))
        assert (learned[100 + 2 * row], learned[101 + 2 * row]) == (2 * UNIT, UNIT)
    assert dict(row_of(held._table, 10, 11))[21] == UNIT
    assert contexts_of(held._table) == {*contexts, *((NONE, b) for _, b in contexts), (NONE, 10)}
    assert held.search(11, 22, budget(1)).tokens.tolist() == [104]
    # The next round hangs below the last token, whose predecessor was committed in this one.
    session.observe(
        Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=ids([5]), top_ids=best[:1], top_logits=logits[:1])
    )
    assert dict(row_of(held._table, 23, 99)) == {100: 2 * UNIT, 101: UNIT, 5: UNIT}


def test_what_is_asked_of_the_target() -> None:
    """As many top tokens as the settings ask for; none for the published method, which learns accepted ones only."""
    assert drafter(settings=AdedSettings(top_k=5)).needs == Needs(top_k=5)
    assert drafter(settings=AdedSettings(top_k=0)).needs == Needs()
    assert AdedPaperDrafter(vocabulary=10).needs == Needs()


def test_budget() -> None:
    """A draft has the nodes that were asked for, no more, and none where none were."""
    held = drafter()
    session = held.open(start(language(1, 3000)))
    for nodes in (0, 1, 2, 63, 64, 300):
        tree = session.propose(budget(nodes))
        assert len(tree) == nodes
        assert len(paths_of(tree)) == nodes


def test_same_input_same_draft() -> None:
    """Two processes that saw the same draft the same trees, whatever the seed."""
    drafts = []
    for seed in (0, 1):
        session = drafter().open(start(language(2, 500)))
        for token in language(3, 40).tolist():
            tree = session.propose(budget(16))
            drafts.append((seed, tree.tokens.tolist(), tree.parents.tolist(), tree.weights.tolist()))
            commit(session, token)
    half = len(drafts) // 2
    assert [draft[1:] for draft in drafts[:half]] == [draft[1:] for draft in drafts[half:]]


def test_settings() -> None:
    """The settings reach the table and the search."""
    text = ids([1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2])
    assert len(drafter(settings=AdedSettings(longest_row=2)).open(start(text)).propose(budget(2)).children(-1)) == 2
    short = drafter(settings=AdedSettings(longest_row=1))
    assert (
        short.open(start(text)).propose(budget(1)).weights[0]
        > drafter().open(start(text)).propose(budget(1)).weights[0]
    )
    sure = drafter(settings=AdedSettings(escape=0.0, row_memory=1.0)).open(start([1, 2, 3, 1, 2]))
    assert sure.propose(budget(1)).weights.tolist() == [1.0]


def test_a_vocabulary_too_large() -> None:
    """Ids that the table cannot hold are refused at once."""
    with pytest.raises(UnsupportedError, match=str(MAX_VOCABULARY)):
        AdedDrafter(vocabulary=MAX_VOCABULARY + 1)
    AdedDrafter(vocabulary=MAX_VOCABULARY)


def test_saved_and_loaded(tmp_path: Path) -> None:
    """A loaded memory drafts as the one that was saved: the same rows, weights to 3 %."""
    text = language(4, 8000)
    held, loaded = drafter(), drafter()
    held.learn(text)
    loaded.learn(ids([7, 8, 9]))
    held.save(tmp_path / "memory")
    loaded.load(tmp_path / "memory")
    assert dict(row_of(loaded._table, 7, 8)) == dict(row_of(held._table, 7, 8))
    assert loaded.memory_bytes < held.memory_bytes
    same = 0
    for at in range(100, 8000, 100):
        a, b = int(text[at]), int(text[at + 1])
        for before in (a, NONE):
            saved, found = dict(row_of(held._table, before, b)), dict(row_of(loaded._table, before, b))
            assert found == pytest.approx(saved, rel=0.034)
        drafts = [set(paths_of(one.search(a, b, budget(16)))) for one in (held, loaded)]
        same += len(drafts[0] & drafts[1]) / len(drafts[0])
    assert same / 79 > 0.9


def test_saving_again_changes_nothing(tmp_path: Path) -> None:
    """A memory that was loaded and saved untouched holds the same rows with the same weights."""
    held = drafter()
    held.learn(language(5, 3000))
    held.save(tmp_path / "one")
    held.load(tmp_path / "one")
    held.save(tmp_path / "two")
    one, two = (
        set(zip(*(column.tolist() for column in thaw(load_table(tmp_path / name, tokenizer="t"))), strict=True))
        for name in ("one", "two")
    )
    assert one == two


def test_learning_goes_on_after_loading(tmp_path: Path) -> None:
    """Three runs with a save between them know the texts of all three."""
    for run in range(3):
        held = drafter()
        if run:
            held.load(tmp_path / "memory")
        held.learn(ids(range(100 * run, 100 * run + 50)))
        held.learn(ids([900, 901, 902 + run]))
        held.save(tmp_path / "memory")
    for run in range(3):
        assert held.search(100 * run, 100 * run + 1, budget(3)).tokens.tolist() == [100 * run + 2 + i for i in range(3)]
    assert sorted(dict(row_of(held._table, 900, 901))) == [902, 903, 904]


def test_after_rotation_everything_held_is_saved(tmp_path: Path) -> None:
    """Young and old generation are both written; of a row that both hold, the newer."""
    held = drafter(memory_limit=200_000)
    held.learn(language(6, 30_000))
    assert len(held._table.old.slots) > 1
    both = contexts_of(held._table)
    held.save(tmp_path / "memory")
    a, b, _, _ = thaw(load_table(tmp_path / "memory", tokenizer="t"))
    kept = set(zip(np.where(a == VOCABULARY, NONE, a).tolist(), b.tolist(), strict=True))
    assert both < kept
    loaded = drafter(memory_limit=1 << 20)
    loaded.load(tmp_path / "memory")
    for context in kept:
        assert dict(row_of(loaded._table, *context)) == pytest.approx(dict(row_of(held._table, *context)), rel=0.034)


@pytest.mark.parametrize("equal", [False, True], ids=["different weights", "equal weights"])
def test_a_small_limit_drops_light_rows(tmp_path: Path, equal: bool) -> None:
    """What is saved can be loaded under the same limit: learned rows stay, the base's lightest go, ties or not."""
    rows = {(i % 100, i // 100): {i % 900: 64 if equal else 20 + 3 * i} for i in range(5000)}
    base = freeze(*columns(rows), vocabulary=VOCABULARY)
    save_table(tmp_path / "memory", base, tokenizer="t", vocabulary=VOCABULARY)
    limit = base.nbytes + 60_000
    held = drafter(memory_limit=limit)
    held.load(tmp_path / "memory")
    held.learn(np.random.default_rng(0).integers(500, 1000, 1500).astype(np.int32))
    learned = contexts_of(held._table)
    held._table.limit = 40_000
    held.save(tmp_path / "memory")
    loaded = drafter(memory_limit=40_000)
    loaded.load(tmp_path / "memory")
    assert 36_000 < loaded._table.base.nbytes <= 40_000
    for context in learned:
        assert row_of(loaded._table, *context)
    kept = [key for key in rows if row_of(loaded._table, *key)]
    assert 0 < len(kept) < 4000
    dropped = [key for key in rows if key not in set(kept)]
    weight = {key: row_of(held._table, *key)[0][1] for key in rows}
    assert min(weight[key] for key in kept) >= max(weight[key] for key in dropped)


@pytest.mark.parametrize("limit", [0, 5000, 60_000])
def test_a_limit_too_small_for_the_index(tmp_path: Path, limit: int) -> None:
    """Saving works even where nothing fits; loading under that limit is refused with a way out."""
    held = drafter(memory_limit=limit, vocabulary=20_000)
    held.learn(language(7, 2000))
    held.save(tmp_path / "memory")
    with pytest.raises(UnsupportedError, match="Raise the limit"):
        held.load(tmp_path / "memory")
    assert len(held.search(1, 31, budget(4)))
    larger = drafter(vocabulary=20_000)
    larger.load(tmp_path / "memory")
    assert larger._table.base.nbytes > limit


def test_a_file_larger_than_the_limit(tmp_path: Path) -> None:
    """It is refused, and what was learned so far is still there."""
    large = drafter()
    large.learn(language(8, 20_000))
    large.save(tmp_path / "memory")
    held = drafter(memory_limit=100_000)
    held.learn(ids([1, 2, 3]))
    with pytest.raises(UnsupportedError, match="memory limit"):
        held.load(tmp_path / "memory")
    assert row_of(held._table, 1, 2) == [(3, UNIT)]


def test_files_that_are_not_this_drafters(tmp_path: Path) -> None:
    """Another tokenizer, another kind of memory, no memory: each has its own error, and nothing learned is lost."""
    held = drafter()
    held.learn(ids([1, 2, 3]))
    drafter(tokenizer="other").save(tmp_path / "other")
    write_memory(tmp_path / "kind", kind="suffix", tokenizer="t", arrays={}, facts={})
    (tmp_path / "text").write_text("no memory")
    for name in ("other", "kind"):
        with pytest.raises(ForeignMemoryError):
            held.load(tmp_path / name)
    with pytest.raises(CorruptMemoryError):
        held.load(tmp_path / "text")
    with pytest.raises(FileError):
        held.load(tmp_path / "missing")
    assert row_of(held._table, 1, 2) == [(3, UNIT)]


def test_models_that_pad_their_vocabulary_differently(tmp_path: Path) -> None:
    """One tokenizer serves models of several sizes; bi-grams survive a save under another number of ids."""
    first = drafter(vocabulary=100)
    first.learn(ids([1, 2, 3] * 5))
    for vocabulary in (100, 120, 90, 110):
        held = drafter(vocabulary=vocabulary)
        if vocabulary == 100:
            held = first
        else:
            held.load(tmp_path / "memory")
        assert held.search(NONE, 2, budget(1)).tokens.tolist() == [3]
        held.learn(ids([50, 2, 4]))
        tree = held.search(50, 2, budget(50))
        assert len(paths_of(tree)) == len(tree)
        held.save(tmp_path / "memory")


def test_threads_share_the_memory(tmp_path: Path) -> None:
    """Learning, searching and saving at once corrupts nothing: every thread's rows are what it alone learned."""
    held = drafter(vocabulary=10_000)
    texts = [(np.random.default_rng(i).integers(0, 40, 4000) + 100 * i).astype(np.int32) for i in range(4)]
    failures: list[BaseException] = []

    def work(text: np.ndarray, path: Path) -> None:
        try:
            session = held.open(start(text[:100]))
            for at in range(100, len(text), 4):
                tree = session.propose(budget(32))
                assert set(tree.tokens.tolist()) <= set(range(text[0] // 100 * 100, text[0] // 100 * 100 + 100))
                commit(session, *text[at : at + 4].tolist())
                if at % 1000 == 0:
                    held.save(path)
            session.close()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(text, tmp_path / str(i))) for i, text in enumerate(texts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    contexts = set()
    for text in texts:
        naive = NaiveTable(AdedSettings().rule())
        naive.learn(text.tolist())
        contexts |= set(naive.rows)
        for context, row in naive.rows.items():
            assert row_of(held._table, *context) == row
    assert contexts_of(held._table) == contexts


def test_memory_bytes() -> None:
    """The bytes reported grow with what is learned and stay below the limit."""
    held = drafter(memory_limit=300_000)
    empty = held.memory_bytes
    held.learn(language(9, 2000))
    assert empty < held.memory_bytes
    held.learn(np.random.default_rng(9).integers(0, 1000, 50_000).astype(np.int32))
    assert held.memory_bytes <= 300_000


def test_the_published_setting_saves_nothing() -> None:
    """As published it keeps nothing between runs, so it has no `save`."""
    assert not isinstance(AdedPaperDrafter(vocabulary=10), Persistent)


def test_the_targets_other_choices_are_learned(tmp_path: Path) -> None:
    """What the target found likely at a rejected node is drafted the next time that context comes up."""
    held = drafter(settings=AdedSettings(top_k=2))
    session = held.open(start([7, 8]))
    tree = DraftTree.from_paths([[9, 10]])
    session.observe(
        Verified(
            tree=tree,
            path=np.empty(0, np.int32),
            tokens=ids([30]),
            top_ids=np.array([[30, 31], [40, 41], [50, 51]], np.int32),
            top_logits=np.array([[2.0, 1.9], [2.0, 1.0], [2.0, 1.0]], np.float32),
        )
    )
    assert held.search(7, 8, budget(2)).tokens.tolist() == [30, 31]
    assert held.search(8, 9, budget(2)).tokens.tolist() == [40, 41]
    assert held.search(9, 10, budget(2)).tokens.tolist() == [50, 51]
