"""LogitSpec: guesses from the last distribution, continued from the text, and a run on a real model."""

from __future__ import annotations

import numpy as np
import pytest

from rounds import budget, start
from speculant import Speculator
from speculant.core.drafter import EMPTY_PATH, Session, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.copying.logitspec import LogitSpecDrafter, LogitSpecSettings
from tables import ids
from trees import make_tree, paths_of


def drafter(**settings: object) -> LogitSpecDrafter:
    """Return a drafter for 1000 token ids."""
    return LogitSpecDrafter(vocabulary=1000, settings=LogitSpecSettings(**settings))


def commit(session: Session, best: list[int] | None, *tokens: int) -> None:
    """Tell a session of a round without a draft, at whose end the target found `best` likely."""
    top = None if best is None else ids(best).reshape(1, -1)
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=ids(tokens), top_ids=top))


def test_runners_up_are_guessed() -> None:
    """The other best tokens of the distribution that gave the root hang below it; the root itself does not."""
    session = drafter().open(start([1, 2]))
    assert len(session.propose(budget(64))) == 0
    commit(session, [5, 6, 7], 5)
    tree = session.propose(budget(64))
    assert (tree.tokens.tolist(), tree.parents.tolist()) == ([6, 7], [-1, -1])
    assert drafter().needs == RequestedOutputs(top_k=64)


def test_guesses_are_continued_from_the_text() -> None:
    """Four tokens in all for the first eight guesses, then three, then one."""
    text = [token for first in range(100, 150) for token in (first, first + 100, first + 200, first + 300, first + 400)]
    session = drafter(nodes=1000).open(start(ids(text)))
    commit(session, [5, *range(100, 150)], 5)
    paths = set(paths_of(session.propose(budget(1000))))
    assert (107, 207, 307, 407) in paths
    assert not any(len(path) > 4 for path in paths)
    assert (108, 208, 308) in paths
    assert not any(len(path) > 3 and path[0] > 107 for path in paths)
    assert (132, 232) not in paths
    assert (149,) in paths


def test_the_end_of_the_text_is_retrieved_too() -> None:
    """Twenty tokens behind the longest match; a guess that the copy begins with is drafted once."""
    session = drafter().open(start([*range(100, 200), 50]))
    commit(session, [100, 101, 150], 100)
    tree = session.propose(budget(64))
    paths = paths_of(tree)
    assert tuple(range(101, 121)) in paths
    assert tuple(range(101, 122)) not in paths
    assert (150, 151, 152, 153) in paths
    assert tree.tokens[tree.children(-1)].tolist() == [101, 150]
    assert len(drafter().open(start([1, 2, 3, 1])).propose(budget(64))) == 20


def test_the_row_of_the_last_accepted_node() -> None:
    """The bonus token was drawn from the row of the last accepted node, so the guesses are that row's."""
    session = drafter().open(start([1]))
    tree = make_tree([10, 11, 12], [-1, -1, 1])
    best = ids(range(20, 28)).reshape(4, 2)
    session.observe(Verified(tree=tree, path=ids([1, 2]), tokens=ids([11, 12, 26]), top_ids=best))
    assert session.propose(budget(64)).tokens.tolist() == [27]
    session.observe(Verified(tree=tree, path=EMPTY_PATH, tokens=ids([20]), top_ids=best))
    assert session.propose(budget(64)).tokens.tolist() == [21]


def test_without_logits() -> None:
    """Where the target gives none, the text alone is left."""
    session = drafter().open(start([1, 2, 3]))
    commit(session, [4, 5], 4)
    commit(session, None, 2)
    assert session.propose(budget(2)).tokens.tolist() == [3, 4]


def test_weights_follow_what_was_right() -> None:
    """A rank whose guesses come true gains; siblings never exceed one; the likeliest nodes come first."""
    random = np.random.default_rng(0)
    session = drafter().open(start([1]))
    commit(session, [2, 3, 4], 2)
    first = session.propose(budget(64)).weights[0]
    token = 2
    for _ in range(60):
        before, token = token + 2, int(random.integers(10, 900))
        commit(session, [token, token + 1, token + 2], before, token)
        session.propose(budget(64))
    tree = session.propose(budget(64))
    assert tree.tokens[0] == token + 2
    assert tree.weights[0] > 0.5 > first
    assert tree.weights[tree.children(-1)].sum() <= 1
    assert (np.diff(tree.weights) <= 0).all()


def test_budget() -> None:
    """A draft has the nodes asked for at most, each path once, and never more than 64."""
    session = drafter().open(start(np.random.default_rng(1).integers(0, 60, 3000).astype(np.int32)))
    commit(session, list(range(59, -1, -1)), 59)
    for nodes in (0, 1, 2, 63, 64, 300):
        tree = session.propose(budget(nodes))
        assert len(tree) == len(paths_of(tree)) == min(nodes, 64)
    assert len(drafter().open(start([])).propose(budget(8))) == 0


def test_settings_that_make_no_sense() -> None:
    """Numbers that would draft nothing are refused."""
    for settings in ({"guesses": 0}, {"copied": 0}, {"lengths": ((8, 0),)}):
        with pytest.raises(UsageError, match="1 or more"):
            LogitSpecSettings(**settings)


def test_on_the_bundled_model() -> None:
    """Real logits: the text of plain decoding in fewer passes."""
    prompt, options = "Once upon a time there was a little dog", {"max_new_tokens": 80, "temperature": 0}
    plain = Speculator.from_pretrained(method="none").generate(prompt, **options)
    speculator = Speculator.from_pretrained(method="logitspec", nodes=32)
    assert speculator.generate(prompt, **options).text == plain.text
    assert speculator.last_stats is not None
    assert speculator.last_stats.mat > 1.2
