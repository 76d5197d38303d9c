"""Drafters of the method `mix` for tests, texts for them, and what every draft of theirs must be."""

from __future__ import annotations

import numpy as np

from rounds import budget, commit, start
from speculant.bench.replay.player import ReplayResult, replay
from speculant.bench.replay.traces import Recording
from speculant.core.tree import DraftTree
from speculant.drafters.mix.drafter import MixDrafter
from trees import paths_of

VOCABULARY = 1000


def drafter(**options: object) -> MixDrafter:
    """Return an empty drafter."""
    return MixDrafter(**{"vocabulary": VOCABULARY, "tokenizer": "t", "memory_limit": 8 << 20, **options})


def language(seed: int, length: int, vocabulary: int = VOCABULARY) -> np.ndarray:
    """Return a text in which a few tokens follow each, as in any language."""
    random = np.random.default_rng(seed)
    text = random.zipf(1.3, length) % vocabulary
    for i in np.flatnonzero(random.random(length) < 0.7):
        text[i] = (text[i - 1] * 31 + text[i] % 3) % vocabulary
    return text.astype(np.int32)


def play(held: MixDrafter, *texts: np.ndarray, nodes: int = 64) -> ReplayResult:
    """Let the drafter draft each text after its first five tokens."""
    return replay(held, [Recording(prompt=text[:5], output=text[5:]) for text in texts], nodes=nodes)


def trees(held: MixDrafter, *texts: np.ndarray, nodes: int = 16) -> list[tuple[list[float], ...]]:
    """Return all drafts for texts that are then learned, as plain numbers."""
    drafts = []
    for text in texts:
        session = held.open(start(text[:20]))
        for token in text[20:].tolist():
            tree = session.propose(budget(nodes))
            drafts.append((tree.tokens.tolist(), tree.parents.tolist(), tree.weights.tolist()))
            commit(session, token)
    return drafts


def table_bytes(held: MixDrafter) -> int:
    """Return the bytes that the limit bounds."""
    return held.memory_bytes - sum(array.nbytes for array in held._tables.mixer)


def check(tree: DraftTree, nodes: int, vocabulary: int = VOCABULARY) -> None:
    """See that a draft is one: no more nodes than asked for, best first, siblings differ, ids exist."""
    assert len(tree) <= nodes
    assert len(set(paths_of(tree))) == len(tree)
    assert (np.diff(tree.weights) <= 0).all()
    assert not len(tree) or 0 <= tree.tokens.min() <= tree.tokens.max() < vocabulary
    assert not len(tree) or 0 < tree.weights.min() <= tree.weights.max() < 1
