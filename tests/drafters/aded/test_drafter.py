"""The drafter of tri-grams: what it learns and drafts, and what requests and threads share."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from mixes import language
from rounds import budget, commit, start
from speculant.core.drafter import EMPTY_PATH, Persistent, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree
from speculant.drafters.aded import puct
from speculant.drafters.aded import table as trigram_table
from speculant.drafters.aded.drafter import AdedDrafter, AdedSettings
from speculant.drafters.aded.paper import AdedPaperDrafter
from speculant.drafters.aded.rows import MAX_VOCABULARY, NONE, UNIT
from tables import NaiveTable, contexts_of, ids, row_of
from trees import make_tree, paths_of

VOCABULARY = 1000


def drafter(**options: object) -> AdedDrafter:
    """Return an empty drafter."""
    return AdedDrafter(**{"vocabulary": VOCABULARY, "tokenizer": "t", **options})


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
    assert drafter(settings=AdedSettings(top_k=5)).needs == RequestedOutputs(top_k=5)
    assert drafter(settings=AdedSettings(top_k=0)).needs == RequestedOutputs()
    assert AdedPaperDrafter(vocabulary=10).needs == RequestedOutputs()


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


def test_threads_share_the_memory(tmp_path: Path) -> None:
    """Learning, searching and saving at once corrupts nothing: every thread's rows are what it alone learned."""
    held = drafter(vocabulary=10_000)
    texts = [(np.random.default_rng(i).integers(0, 40, 2000) + 100 * i).astype(np.int32) for i in range(4)]
    failures: list[BaseException] = []

    def work(text: np.ndarray, path: Path) -> None:
        try:
            session = held.open(start(text[:100]))
            for at in range(100, len(text), 4):
                tree = session.propose(budget(32))
                assert set(tree.tokens.tolist()) <= set(range(text[0] // 100 * 100, text[0] // 100 * 100 + 100))
                commit(session, *text[at : at + 4].tolist())
                if at % 500 == 0:
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
