"""Token Recycling: the shape of the tree, what is learned from every row, and a run on a real model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rounds import budget, start
from speculant import Speculator
from speculant.core.drafter import EMPTY_PATH, Session, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import CorruptMemoryError, ForeignMemoryError, UnsupportedError, UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.recycling.drafter import (
    UNKNOWN,
    RecyclingDrafter,
    RecyclingSettings,
    prior_rates,
    tree_shape,
)
from tables import ids
from trees import make_tree, paths_of

PUBLISHED_LEVELS = [8, 21, 25, 15, 8, 3]


def drafter(**options: object) -> RecyclingDrafter:
    """Return an empty drafter that keeps two successors per token."""
    settings = RecyclingSettings(successors=2)
    return RecyclingDrafter(**{"vocabulary": 100, "tokenizer": "t", "settings": settings, **options})


def learn(held: RecyclingDrafter, token: int, *best: int) -> None:
    """Let `best` be the target's top tokens after a token."""
    commit(held.open(start([token])), [best], best[0])


def commit(session: Session, best: object, *tokens: int) -> None:
    """Observe a round without a draft."""
    top = np.array(best, np.int32)
    logits = np.zeros(top.shape, np.float32)
    empty = DraftTree.empty()
    session.observe(Verified(tree=empty, path=EMPTY_PATH, tokens=ids(tokens), top_ids=top, top_logits=logits))


def test_the_shape() -> None:
    """80 nodes, likeliest first, on levels near the published ones."""
    ranks, parents = tree_shape(prior_rates(8), 80)
    depths = DraftTree(ranks, parents, np.linspace(1, 0, 80, dtype=np.float32)).depths()
    levels = np.bincount(depths)[1:].tolist()
    assert sum(levels) == 80
    assert [abs(ours - theirs) <= 2 for ours, theirs in zip(levels, PUBLISHED_LEVELS, strict=True)]
    assert levels[0] == 8
    assert ranks[:2].tolist() == [0, 0]
    assert len(set(zip(ranks.tolist(), parents.tolist(), strict=True))) == 80


def test_a_tree_is_read_off_the_matrix() -> None:
    """Successors of successors, as far as they are known."""
    held = drafter()
    learn(held, 1, 2, 3)
    learn(held, 2, 4, 5)
    learn(held, 4, 1, 9)
    tree = held.open(start([1])).propose(budget(80))
    assert {(2,), (3,), (2, 4), (2, 5), (2, 4, 1), (2, 4, 9), (2, 4, 1, 2)} <= set(paths_of(tree))
    assert not any(path[:2] == (3, 4) for path in paths_of(tree))
    assert len(held.open(start([50])).propose(budget(80))) == 0
    assert held.needs == RequestedOutputs(top_k=2, always=True)


def test_every_row_teaches() -> None:
    """The root, accepted and rejected nodes; where a token stands twice the accepted one counts."""
    held = drafter()
    session = held.open(start([1]))
    tree = make_tree([10, 11, 12, 11], [-1, -1, 0, 0])
    best = ids(range(20, 30)).reshape(5, 2)
    logits = np.zeros((5, 2), np.float32)
    session.observe(Verified(tree=tree, path=ids([1]), tokens=ids([11, 9]), top_ids=best, top_logits=logits))
    known = {token: row.tolist() for token, row in enumerate(held._successors) if row[0] != UNKNOWN}
    assert known == {1: [20, 21], 10: [22, 23], 11: [24, 25], 12: [26, 27]}
    commit(session, [[7, 8]], 7)
    assert held._successors[9].tolist() == [7, 8]


def test_the_prompt_is_not_known() -> None:
    """Only its last token has logits, those of prefill."""
    held = drafter()
    session = held.open(start([1, 2, 3]))
    assert len(session.propose(budget(80))) == 0
    commit(session, [[4, 5]], 4)
    assert (held._successors[:, 0] != UNKNOWN).sum() == 1
    assert held._successors[3].tolist() == [4, 5]


def test_weights_follow_what_was_right() -> None:
    """Ranks that turn out right gain, so a small budget takes other nodes of the same shape."""
    held = drafter()
    for token in range(4):
        learn(held, token, (token + 1) % 4, (token + 2) % 4)
    before = held.open(start([0])).propose(budget(80))
    session, at = held.open(start([0])), 0
    for _ in range(300):
        best = [[(at + 1) % 4, (at + 2) % 4]]
        at = (at + 2) % 4
        commit(session, best, at)
    after = held.open(start([0])).propose(budget(80))
    assert before.tokens[0] == 1
    assert after.tokens.tolist()[:3] == [2, 0, 2]
    assert after.weights[0] > 0.8
    assert after.weights[after.children(-1)].sum() <= 1
    assert (np.diff(after.weights) <= 0).all()
    assert set(paths_of(before)) == set(paths_of(after))
    for nodes in (0, 1, 5):
        small = held.open(start([0])).propose(budget(nodes))
        assert paths_of(small) == paths_of(after.head(nodes))


def test_odd_requests() -> None:
    """No prompt, ids beyond the vocabulary, and a target with fewer tokens than are kept."""
    held = drafter(settings=RecyclingSettings())
    session = held.open(start([]))
    assert len(session.propose(budget(8))) == 0
    commit(session, [[5, 6]], 5)
    assert (held._successors == UNKNOWN).all()
    commit(session, [[6, 7]], 6)
    assert held.open(start([5])).propose(budget(8)).tokens.tolist() == [6, 7]
    assert len(held.open(start([5000])).propose(budget(8))) == 0
    with pytest.raises(UsageError, match="1 successor or more"):
        RecyclingSettings(successors=0)


def test_saved_and_loaded(tmp_path: Path) -> None:
    """The matrix and the shares come back; ids that a smaller vocabulary lacks are unknown."""
    held = drafter()
    learn(held, 1, 2, 99)
    learn(held, 1, 2, 99)
    held.save(tmp_path / "memory")
    for vocabulary, expected in ((100, [2, 99]), (120, [2, 99]), (90, [2])):
        loaded = drafter(vocabulary=vocabulary)
        loaded.load(tmp_path / "memory")
        tree = loaded.open(start([1])).propose(budget(8))
        assert tree.tokens.tolist() == expected
        assert tree.weights[0] == held.open(start([1])).propose(budget(8)).weights[0]
        learn(loaded, 1, 3, 4)
    with pytest.raises(UnsupportedError, match="keeps 2 successors"):
        drafter(settings=RecyclingSettings()).load(tmp_path / "memory")


def test_files_that_are_not_this_drafters(tmp_path: Path) -> None:
    """Another tokenizer's and no memory at all are refused, and nothing is forgotten."""
    held = drafter()
    learn(held, 1, 2, 3)
    drafter(tokenizer="other").save(tmp_path / "other")
    (tmp_path / "text").write_text("no memory")
    with pytest.raises(ForeignMemoryError):
        held.load(tmp_path / "other")
    with pytest.raises(CorruptMemoryError):
        held.load(tmp_path / "text")
    assert held.open(start([1])).propose(budget(8)).tokens.tolist() == [2, 3]


def test_the_limit() -> None:
    """The matrix has one size; a limit below it is refused with a way out."""
    assert drafter(memory_limit=800).memory_bytes == 800
    with pytest.raises(UnsupportedError, match=r"800 bytes.*799.*Raise the limit"):
        drafter(memory_limit=799)


def test_on_the_bundled_model() -> None:
    """Real logits: the text of plain decoding in fewer passes, and fewer still once the memory knows it."""
    prompt, options = "Once upon a time there was a little dog", {"max_new_tokens": 40, "temperature": 0}
    plain = Speculator.from_pretrained(method="none").generate(prompt, **options)
    speculator = Speculator.from_pretrained(method="recycling", nodes=32)
    mats = []
    for _ in range(2):
        assert speculator.generate(prompt, **options).text == plain.text
        assert speculator.last_stats is not None
        mats.append(speculator.last_stats.mat)
    assert 1.2 < mats[0] < mats[1]
