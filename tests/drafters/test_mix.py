"""Mix: what it drafts, how well it knows its chances, and that nothing breaks its memory."""

from __future__ import annotations

import heapq
import os
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from speculant.bench.replay import Played, replay
from speculant.bench.traces import Recording
from speculant.drafters.base import EMPTY_PATH, Needs, Session, Verified
from speculant.drafters.cells import MAX_TOKENS
from speculant.drafters.contexts import CONTEXTS, ECHO_ONE, ECHO_TWO, WINDOW, hash_contexts
from speculant.drafters.copying import NOWHERE, seek
from speculant.drafters.memory_file import write_memory
from speculant.drafters.mix import KIND, MixDrafter, MixSession, MixSettings
from speculant.drafters.mixing import LONGEST_ROW, gather, new_scratch, squash
from speculant.errors import CorruptMemoryError, FileError, ForeignMemoryError, UnsupportedError
from speculant.tree import DraftTree
from tables import ids
from trees import make_tree, paths_of

VOCABULARY = 1000


def drafter(**options: object) -> MixDrafter:
    """Return an empty drafter."""
    return MixDrafter(**{"vocabulary": VOCABULARY, "tokenizer": "t", "memory_limit": 8 << 20, **options})


def commit(session: Session, *tokens: int) -> None:
    """Tell a session what was committed."""
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=ids(tokens)))


def language(seed: int, length: int, vocabulary: int = VOCABULARY) -> np.ndarray:
    """Return a text in which a few tokens follow each, as in any language."""
    random = np.random.default_rng(seed)
    text = random.zipf(1.3, length) % vocabulary
    for i in np.flatnonzero(random.random(length) < 0.7):
        text[i] = (text[i - 1] * 31 + text[i] % 3) % vocabulary
    return text.astype(np.int32)


def play(held: MixDrafter, *texts: np.ndarray, nodes: int = 64) -> Played:
    """Let the drafter draft each text after its first five tokens."""
    return replay(held, [Recording(prompt=text[:5], output=text[5:]) for text in texts], nodes=nodes)


def trees(held: MixDrafter, *texts: np.ndarray, nodes: int = 16) -> list[tuple[list[float], ...]]:
    """Return all drafts for texts that are then learned, as plain numbers."""
    drafts = []
    for text in texts:
        session = held.open(text[:20])
        for token in text[20:].tolist():
            tree = session.propose(nodes)
            drafts.append((tree.tokens.tolist(), tree.parents.tolist(), tree.weights.tolist()))
            commit(session, token)
    return drafts


def table_bytes(held: MixDrafter) -> int:
    """Return the bytes that the limit bounds."""
    return held.memory_bytes - sum(array.nbytes for array in held._mixer)


def check(tree: DraftTree, nodes: int, vocabulary: int = VOCABULARY) -> None:
    """See that a draft is one: no more nodes than asked for, best first, siblings differ, ids exist."""
    assert len(tree) <= nodes
    assert len(set(paths_of(tree))) == len(tree)
    assert (np.diff(tree.weights) <= 0).all()
    assert not len(tree) or 0 <= tree.tokens.min() <= tree.tokens.max() < vocabulary
    assert not len(tree) or 0 < tree.weights.min() <= tree.weights.max() < 1


def test_a_repeated_text_is_known() -> None:
    """What was said once is drafted far ahead when it comes again, in another request too."""
    held, text = drafter(), language(0, 600)
    first = play(held, text)
    again = play(held, text, text)
    assert first.mat < 3
    assert again.mat > 15
    assert play(drafter(), np.tile(text[:60], 10)).mat > 8


def test_drafts_are_trees() -> None:
    """Whatever the budget: as many nodes as asked for, best first."""
    held = drafter()
    session = held.open(language(1, 3000))
    for nodes in (0, 1, 2, 63, 64, 300):
        tree = session.propose(nodes)
        check(tree, nodes)
        assert len(tree) == nodes
    for token in language(2, 100).tolist():
        check(session.propose(20), 20)
        commit(session, token)


def test_a_prompt_of_one_token() -> None:
    """Nothing is known at first; one token later its follower is."""
    held = drafter()
    session = held.open(ids([5]))
    assert {path[-1] for path in paths_of(session.propose(8))} <= {5}
    commit(session, 6)
    commit(session, 5)
    assert session.propose(8).tokens[0] == 6
    assert held.open(ids([5])).propose(1).tokens.tolist() == [6]


def test_an_empty_prompt() -> None:
    """Engines may begin with nothing; the drafter just has nothing to say."""
    held = drafter(settings=MixSettings(top_k=2))
    session = held.open(ids([]))
    assert len(session.propose(8)) == 0
    top = {"top_ids": ids([[1, 2]]), "top_logits": np.zeros((1, 2), np.float32)}
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=ids([1]), **top))
    commit(session, 2, 1)
    assert session.propose(1).tokens.tolist() == [2]


def test_long_answers() -> None:
    """A text that outgrows its first room is kept whole, however many tokens a round brings."""
    held, text = drafter(), language(3, 5000)
    session = held.open(text[:10])
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
    session = held.open(language(4, 100))
    before = trees(drafter(), language(5, 40))
    for wrong in (-1, VOCABULARY, MAX_TOKENS):
        with pytest.raises(ValueError, match="from 0 to 999"):
            held.open(ids([1, wrong, 2]))
        with pytest.raises(ValueError, match="from 0 to 999"):
            commit(session, wrong)
    commit(session, 5)
    check(session.propose(8), 8)
    assert len(trees(held, language(5, 40))) == len(before)
    with pytest.raises(UnsupportedError, match=str(MAX_TOKENS)):
        drafter(vocabulary=MAX_TOKENS + 1)


def test_same_input_same_draft() -> None:
    """Two processes that saw the same draft the same trees, whatever the seed."""
    texts = [language(seed, 150) for seed in (6, 7)]
    assert trees(drafter(), *texts) == trees(drafter(), *texts)
    assert paths_of(drafter().open(texts[0], seed=1).propose(9)) == paths_of(drafter().open(texts[0]).propose(9))


class Exhaustive:
    """The slow way: every candidate of every path, by the mixture alone."""

    def __init__(self, held: MixDrafter, session: MixSession) -> None:
        self.tables = held._narrow, held._wide, held._mixer
        self.text, self.request = session._text[: session._length], session._request
        self.scratch = new_scratch()

    def below(self, path: tuple[int, ...], place: int, agreed: int) -> list[tuple[int, float, int, int]]:
        """Return each child's token and conditional probability, and where its repetition goes on."""
        window, hashes = np.append(self.text, ids(path))[-WINDOW:].astype(np.int32), np.empty(CONTEXTS, np.uint64)
        hash_contexts(window, len(window), self.tables[2].frequency, hashes)
        if place == NOWHERE and path:
            place, agreed = seek(self.request.heads, self.text, window)
        if place >= len(self.text):
            place, agreed = NOWHERE, 0
        copied = int(self.text[place]) if place != NOWHERE else NOWHERE
        now = len(self.text) + len(path)
        last_use = self.request.last_use
        count = gather(*self.tables, hashes, copied, agreed, last_use, now, LONGEST_ROW, self.scratch)
        children = []
        for token, z in zip(self.scratch.candidates[:count].tolist(), self.scratch.logits, strict=False):
            after = (place + 1, agreed + 1) if token == copied else (NOWHERE, 0)
            children.append((token, squash(self.tables[2], z), *after))
        return children

    def best(self, nodes: int) -> list[float]:
        """Return the joint probabilities of the most probable paths."""
        found: list[float] = []
        place, agreed = self.request.copy.tolist()
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
            session = held.open(text[:50])
            for begin in range(50, len(text), 2):
                commit(session, *text[begin : begin + 2].tolist())
            assert isinstance(session, MixSession)
            drafts.append(session.propose(20).weights)
        slow = Exhaustive(held, session).best(20)
        assert drafts[0].tolist() == pytest.approx(slow, rel=1e-4)
        exact, found = exact + float(drafts[0].sum()), found + float(drafts[1].sum())
    assert 0.97 * exact <= found <= exact


def test_probabilities_are_calibrated() -> None:
    """On a source whose law is known drafts claim what comes true, and on average what the law says."""
    random = np.random.default_rng(8)
    law = random.dirichlet(np.full(20, 0.3), 20)
    text = [0]
    for draw in random.random(6500).tolist():
        text.append(min(19, int(np.searchsorted(law[text[-1]].cumsum(), draw))))
    held = drafter(vocabulary=20)
    play(held, ids(text[:5000]), nodes=8)
    drafting = play(held, ids(text[5000:6000]), nodes=32).drafting
    assert drafting is not None
    assert drafting.reliability.counts.sum() > 4000
    assert drafting.reliability.ece is not None
    assert drafting.reliability.ece < 0.03

    session, claims = held.open(ids(text[6000:6001])), []
    for root, token in pairwise(text[6000:]):
        tree = session.propose(24)
        children = tree.children(-1)
        claims.append(np.stack([tree.weights[children], law[root, tree.tokens[children]]]))
        commit(session, token)
    claimed, lawful = np.concatenate(claims, axis=1)
    bins = (20 * claimed).astype(int)
    assert np.abs(np.bincount(bins, weights=claimed - lawful)).sum() / len(bins) < 0.03
    assert np.corrcoef(claimed, lawful)[0, 1] > 0.7


def test_the_targets_other_choices_are_learned() -> None:
    """A token that only ever was the target's runner-up is drafted when its context comes again."""
    held = drafter(settings=MixSettings(top_k=2))
    session = held.open(ids([7, 8]))
    tree = make_tree([9, 10, 11], [-1, 0, -1])
    best = ids([[30, 31], [40, 41], [50, 51], [60, 61]])
    logits = np.tile(np.array([2.0, 1.5], np.float32), (4, 1))
    session.observe(Verified(tree=tree, path=EMPTY_PATH, tokens=ids([30]), top_ids=best, top_logits=logits))
    for before, root, runners in ((7, 8, [30, 31]), (8, 9, [40, 41]), (9, 10, [50, 51]), (8, 11, [60, 61])):
        again = held.open(ids([before, root])).propose(64)
        drafted = again.tokens[again.children(-1)].tolist()
        assert set(runners) <= set(drafted)
        assert drafted.index(runners[0]) < drafted.index(runners[1])
        assert not {40, 41, 50, 51, 60, 61} - set(runners) & set(drafted)


def test_what_is_asked_of_the_target() -> None:
    """As many best tokens as the settings say, and none where nothing is learned from them."""
    assert drafter(settings=MixSettings(top_k=5)).needs == Needs(top_k=5)
    assert drafter(settings=MixSettings(top_k=0)).needs == Needs()


def test_no_answer_is_weighed_that_was_told_before() -> None:
    """What the target said of a row is learned after the row's own token: else it would seem to have foretold it."""
    held = drafter(settings=MixSettings(top_k=2))
    session = held.open(ids([0, 1]))
    logits = np.tile(np.array([9.0, 0.0], np.float32), (2, 1))
    for token in range(2, 60, 2):  # no context comes twice
        best = ids([[token, 99], [token + 1, 99]])
        tree, path = make_tree([token], [-1]), ids([0])
        tokens = ids([token, token + 1])
        session.observe(Verified(tree=tree, path=path, tokens=tokens, top_ids=best, top_logits=logits))
        assert held._mixer.evidence[2, [ECHO_ONE, ECHO_TWO]].sum() == 0
    again = held.open(ids([0]))
    commit(again, 1)
    commit(again, 2)
    assert held._mixer.evidence[2, [ECHO_ONE, ECHO_TWO]].sum(axis=1).min() > 0


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
    arrays = {f"mixer.{name}": array[:1] for name, array in held._mixer._asdict().items()}
    write_memory(tmp_path / "old", kind=KIND, tokenizer="t", arrays=arrays, facts={"vocabulary": VOCABULARY})
    refused: list[tuple[str, type[Exception], str]] = [
        ("tokenizer", ForeignMemoryError, "another tokenizer"),
        ("vocabulary", UnsupportedError, "500 ids, this model's has 1000"),
        ("kind", ForeignMemoryError, "kind 'trigram'"),
        ("old", ForeignMemoryError, "version"),
        ("cut", CorruptMemoryError, "cut short"),
        ("head", CorruptMemoryError, "damaged"),
        ("rows", CorruptMemoryError, "damaged"),
        ("end", CorruptMemoryError, "damaged"),
        ("text", CorruptMemoryError, "not a Speculant memory"),
        ("nothing", FileError, "no memory file"),
    ]
    for name, error, said in refused:
        with pytest.raises(error, match=said):
            held.load(tmp_path / name)
    held.save(tmp_path / "after")
    assert (tmp_path / "after").read_bytes() == good
    assert play(held, text).mat > 10


def test_a_memory_larger_than_the_limit(tmp_path: Path) -> None:
    """It is refused with a way out, and the drafter goes on with what it has."""
    large, small = drafter(memory_limit=8 << 20), drafter(memory_limit=1 << 20)
    large.open(np.random.default_rng(13).integers(0, VOCABULARY, 60_000).astype(np.int32))
    assert table_bytes(large) > 1 << 20
    large.save(tmp_path / "memory")
    before = trees(small, language(13, 60))
    with pytest.raises(UnsupportedError, match=r"takes \d MB, the memory limit is 1 MB. Raise the limit"):
        small.load(tmp_path / "memory")
    assert trees(drafter(memory_limit=1 << 20), language(13, 60)) == before
    check(small.open(language(13, 60)).propose(8), 8)


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
from speculant.drafters.mix import MixDrafter
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
    fixed = sum(array.nbytes for array in held._mixer)
    assert fixed < 8 * 30_000 + 65_536
    for _ in range(10):
        session = held.open(random.integers(0, 30_000, 29_700).astype(np.int32))
        for _ in range(30):
            commit(session, *random.integers(0, 30_000, 10).tolist())
            assert table_bytes(held) <= 1 << 20
        check(session.propose(64), 64, 30_000)
    assert table_bytes(held) > 1 << 19
    assert sum(array.nbytes for array in held._mixer) == fixed
    text = language(16, 300)
    play(held, text)
    assert play(held, text).mat > 5


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
    large.open(random.integers(0, 250, 60_000).astype(np.int32))
    large.save(tmp_path / "memory")
    limit = int(1.02 * table_bytes(large))
    held = drafter(vocabulary=5000, memory_limit=limit)
    held.load(tmp_path / "memory")
    assert table_bytes(held) == table_bytes(large)
    held.open(random.integers(0, 5000, 60_000).astype(np.int32))
    assert table_bytes(held) <= limit


def test_threads_share_the_memory(tmp_path: Path) -> None:
    """Learning, drafting, saving and loading at once corrupts nothing: drafts are trees of tokens that were taught."""
    held = drafter(vocabulary=10_000)
    texts = [(language(i, 1500, 40) + 100 * i).astype(np.int32) for i in range(3)]
    taught = set(np.concatenate(texts).tolist())
    held.save(tmp_path / "empty")
    failures: list[BaseException] = []

    def work(text: np.ndarray, path: Path) -> None:
        try:
            session = held.open(text[:100])
            for at in range(100, len(text), 4):
                tree = session.propose(32)
                check(tree, 32, 10_000)
                assert set(tree.tokens.tolist()) <= taught
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
    for entries in (held._narrow.entries, held._wide.entries):
        tokens = entries[(entries >> 20 & 127) > 0] & (MAX_TOKENS - 1)
        assert set(tokens.tolist()) <= taught
    assert np.isfinite(held._mixer.weights).all()
