"""Mix: what it drafts, and how well its probabilities are calibrated."""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np
import pytest

from mixes import VOCABULARY, check, drafter, language, play, trees
from rounds import budget, commit, start
from speculant.core.drafter import EMPTY_PATH, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.tree import DraftTree
from speculant.drafters.mix.arrays import INPUTS, LONGEST_ROW, SAMPLES, new_features
from speculant.drafters.mix.cells import MAX_TOKENS
from speculant.drafters.mix.contexts import CONTEXTS, TARGET_ONE, TARGET_TWO, WINDOW, hash_contexts
from speculant.drafters.mix.drafter import MixDrafter, MixSession, MixSettings
from speculant.drafters.mix.features import gather
from speculant.drafters.mix.history import History
from speculant.drafters.mix.mixer import combine, squash
from speculant.drafters.mix.repetition import NOWHERE, seek
from tables import ids
from trees import make_tree, paths_of


def test_a_repeated_text_is_known() -> None:
    """A text seen once is drafted far ahead when it occurs again, in another request too."""
    held, text = drafter(), language(0, 600)
    first = play(held, text)
    again = play(held, text, text)
    assert first.mat < 3
    assert again.mat > 15
    assert play(drafter(), np.tile(text[:60], 10)).mat > 8


def test_drafts_are_trees() -> None:
    """Whatever the budget: as many nodes as asked for, best first."""
    held = drafter()
    session = held.open(start(language(1, 3000)))
    for nodes in (0, 1, 2, 63, 64, 300):
        tree = session.propose(budget(nodes))
        check(tree, nodes)
        assert len(tree) == nodes
    for token in language(2, 100).tolist():
        check(session.propose(budget(20)), 20)
        commit(session, token)


def test_a_prompt_of_one_token() -> None:
    """Nothing is known at first; one token later its follower is."""
    held = drafter()
    session = held.open(start([5]))
    assert {path[-1] for path in paths_of(session.propose(budget(8)))} <= {5}
    commit(session, 6)
    commit(session, 5)
    assert session.propose(budget(8)).tokens[0] == 6
    assert held.open(start([5])).propose(budget(1)).tokens.tolist() == [6]


def test_an_empty_prompt() -> None:
    """Engines may start with an empty prompt; the drafter then drafts nothing."""
    held = drafter(settings=MixSettings(top_k=2))
    session = held.open(start([]))
    assert len(session.propose(budget(8))) == 0
    top = {"top_ids": ids([[1, 2]]), "top_logits": np.zeros((1, 2), np.float32)}
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=ids([1]), **top))
    commit(session, 2, 1)
    assert session.propose(budget(1)).tokens.tolist() == [2]


def test_long_answers() -> None:
    """A text that outgrows its first room is kept whole, however many tokens a round brings."""
    held, text = drafter(), language(3, 5000)
    session = held.open(start(text[:10]))
    at = 10
    for step in (1, 1500, 3, 2400):
        commit(session, *text[at : at + step].tolist())
        at += step
    assert isinstance(session, MixSession)
    assert session._length == at
    assert np.array_equal(session._text[:at], text[:at])


def test_ids_beyond_the_vocabulary() -> None:
    """They are refused before anything is learned, and the drafter goes on."""
    held = drafter()
    session = held.open(start(language(4, 100)))
    before = trees(drafter(), language(5, 40))
    for wrong in (-1, VOCABULARY, MAX_TOKENS):
        with pytest.raises(ValueError, match="from 0 to 999"):
            held.open(start([1, wrong, 2]))
        with pytest.raises(ValueError, match="from 0 to 999"):
            commit(session, wrong)
    commit(session, 5)
    check(session.propose(budget(8)), 8)
    assert len(trees(held, language(5, 40))) == len(before)
    with pytest.raises(UnsupportedError, match=str(MAX_TOKENS)):
        drafter(vocabulary=MAX_TOKENS + 1)


def test_same_input_same_draft() -> None:
    """Two processes that saw the same draft the same trees, whatever the seed."""
    texts = [language(seed, 150) for seed in (6, 7)]
    assert trees(drafter(), *texts) == trees(drafter(), *texts)
    assert paths_of(drafter().open(start(texts[0])).propose(budget(9))) == paths_of(
        drafter().open(start(texts[0])).propose(budget(9))
    )


class Exhaustive:
    """The slow way: every candidate of every path, by the mixture alone."""

    def __init__(self, held: MixDrafter, session: MixSession) -> None:
        self.tables = held._tables
        self.text = session._text[: session._length]
        last_use, links, self.heads, self.copy, _ = session._request
        self.history = History(self.text, len(self.text), last_use, links)
        self.features = new_features(INPUTS)

    def below(self, path: tuple[int, ...], place: int, agreed: int) -> list[tuple[int, float, int, int]]:
        """Return each child's token and conditional probability, and where its repetition goes on."""
        window, hashes = np.append(self.text, ids(path))[-WINDOW:].astype(np.int32), np.empty(CONTEXTS, np.uint64)
        hash_contexts(window, len(window), self.tables.mixer.frequency, hashes)
        if place == NOWHERE and path:
            place, agreed = seek(self.heads, self.text, window)
        if place >= len(self.text):
            place, agreed = NOWHERE, 0
        copied = int(self.text[place]) if place != NOWHERE else NOWHERE
        now = len(self.text) + len(path)
        last = int(window[-1])
        count = gather(*self.tables[:4], hashes, copied, agreed, self.history, last, now, LONGEST_ROW, self.features)
        combine(self.tables.mixer, self.features, count)
        children = []
        for token, z in zip(self.features.candidates[:count].tolist(), self.features.logits, strict=False):
            after = (place + 1, agreed + 1) if token == copied else (NOWHERE, 0)
            children.append((token, squash(self.tables.mixer, z), *after))
        return children

    def best(self, nodes: int) -> list[float]:
        """Return the joint probabilities of the most probable paths."""
        found: list[float] = []
        place, agreed = self.copy.tolist()
        frontier: list[tuple[float, tuple[int, ...], int, int]] = [(-1.0, (), place, agreed)]
        while frontier and len(found) <= nodes:
            joint, path, place, agreed = heapq.heappop(frontier)
            found.append(-joint)
            for token, p, *after in self.below(path, place, agreed):
                heapq.heappush(frontier, (joint * p, (*path, token), *after))
        return found[1:]


def test_finds_the_most_probable_paths() -> None:
    """Against trying everything: no tree of so many nodes has a larger sum, and a cut costs next to nothing."""
    exact, found = 0.0, 0.0
    for seed in range(12):
        text = language(seed, 200 + 10 * seed, vocabulary=4)  # rows of four tokens at the most are read whole
        drafts = []
        for cut in (1.0, 0.2):
            held = drafter(settings=MixSettings(cut=cut))
            session = held.open(start(text[:50]))
            for begin in range(50, len(text), 2):
                commit(session, *text[begin : begin + 2].tolist())
            assert isinstance(session, MixSession)
            drafts.append(session.propose(budget(20)).weights)
        slow = Exhaustive(held, session).best(20)
        assert drafts[0].tolist() == pytest.approx(slow, rel=1e-4)
        exact, found = exact + float(drafts[0].sum()), found + float(drafts[1].sum())
    assert 0.97 * exact <= found <= exact


def test_probabilities_are_calibrated() -> None:
    """On a source of known distribution weights match acceptance, and on average the true probabilities."""
    random = np.random.default_rng(8)
    distribution = random.dirichlet(np.full(20, 0.3), 20)
    text = [0]
    for draw in random.random(6500).tolist():
        text.append(min(19, int(np.searchsorted(distribution[text[-1]].cumsum(), draw))))
    held = drafter(vocabulary=20)
    play(held, ids(text[:5000]), nodes=8)
    drafting = play(held, ids(text[5000:6000]), nodes=32).drafting
    assert drafting is not None
    assert drafting.reliability.counts.sum() > 4000
    assert drafting.reliability.ece is not None
    assert drafting.reliability.ece < 0.03

    session, claims = held.open(start(ids(text[6000:6001]))), []
    for root, token in pairwise(text[6000:]):
        tree = session.propose(budget(24))
        children = tree.children(-1)
        claims.append(np.stack([tree.weights[children], distribution[root, tree.tokens[children]]]))
        commit(session, token)
    claimed, lawful = np.concatenate(claims, axis=1)
    bins = (20 * claimed).astype(int)
    assert np.abs(np.bincount(bins, weights=claimed - lawful)).sum() / len(bins) < 0.03
    assert np.corrcoef(claimed, lawful)[0, 1] > 0.7


def test_the_targets_other_choices_are_learned() -> None:
    """A token that only ever was the target's runner-up is drafted when its context comes again."""
    held = drafter(settings=MixSettings(top_k=2))
    session = held.open(start([7, 8]))
    tree = make_tree([9, 10, 11], [-1, 0, -1])
    best = ids([[30, 31], [40, 41], [50, 51], [60, 61]])
    logits = np.tile(np.array([2.0, 1.5], np.float32), (4, 1))
    session.observe(Verified(tree=tree, path=EMPTY_PATH, tokens=ids([30]), top_ids=best, top_logits=logits))
    for before, root, runners in ((7, 8, [30, 31]), (8, 9, [40, 41]), (9, 10, [50, 51]), (8, 11, [60, 61])):
        again = held.open(start([before, root])).propose(budget(64))
        drafted = again.tokens[again.children(-1)].tolist()
        assert set(runners) <= set(drafted)
        assert drafted.index(runners[0]) < drafted.index(runners[1])
        assert not {40, 41, 50, 51, 60, 61} - set(runners) & set(drafted)


def test_what_is_asked_of_the_target() -> None:
    """As many top tokens as the settings ask for, and none where nothing is learned from them."""
    assert drafter(settings=MixSettings(top_k=5)).needs == RequestedOutputs(top_k=5)
    assert drafter(settings=MixSettings(top_k=0)).needs == RequestedOutputs()


def test_the_mixture_is_not_trained_on_what_a_row_already_holds() -> None:
    """The target's top-k of a row is learned after the row's own token: else it would seem to have predicted it."""
    held = drafter(settings=MixSettings(top_k=2))
    session = held.open(start([0, 1]))
    logits = np.tile(np.array([9.0, 0.0], np.float32), (2, 1))
    for token in range(2, 60, 2):  # no context comes twice
        best = ids([[token, 99], [token + 1, 99]])
        tree, path = make_tree([token], [-1]), ids([0])
        tokens = ids([token, token + 1])
        session.observe(Verified(tree=tree, path=path, tokens=tokens, top_ids=best, top_logits=logits))
        assert held._tables.mixer.states[SAMPLES, [TARGET_ONE, TARGET_TWO]].sum() == 0
    again = held.open(start([0]))
    commit(again, 1)
    commit(again, 2)
    assert held._tables.mixer.states[SAMPLES, [TARGET_ONE, TARGET_TWO]].sum(axis=1).min() > 0
