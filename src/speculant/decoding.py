"""The round loop: draft, verify, commit, learn.

    prefill
    while the text goes on:
        sizing says how many nodes may be worth drafting
        the session proposes a tree of at most as many, best first; sizing cuts off what does not pay
        the target runs one pass over the root and all nodes
        the verifier walks the tree along the target's own tokens
        the target keeps the cache rows of the accepted path
        the session learns what was committed, sizing what it took

Draft-then-verify is Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318); the
tree form SpecInfer (Miao et al. 2023, arXiv 2305.09781).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from speculant.drafters.base import EMPTY_PATH, Drafter, Session, Verified
from speculant.sizing import Sizing
from speculant.stats import Stats
from speculant.targets.base import Logits, Sampler, Target
from speculant.tree import DraftTree, Float32, Int32
from speculant.verifiers.sample_then_follow import sample_then_follow


class Source(Enum):
    """Where a token came from."""

    PLAIN = "plain"
    ACCEPTED = "accepted"
    BONUS = "bonus"


@dataclass(frozen=True, slots=True)
class Round:
    """The tokens of one round and where each came from."""

    tokens: list[int]
    sources: list[Source]


def decode(
    target: Target, sampler: Sampler, drafter: Drafter, prompt: Int32, *, sizing: Sizing, seed: int, stats: Stats
) -> Iterator[Round]:
    """Decode one request, yielding its rounds as they happen.

    Args:
        target, sampler: of this request.
        drafter: shared; a session is opened on it and closed whatever happens.
        prompt: Int32[T].
        sizing: says how many nodes a draft may have.
        seed: for drafters that draw random numbers.
        stats: is filled.
    """
    start = time.perf_counter()
    logits = target.prefill()
    best = _best(target, drafter, logits)
    sampler.look(logits, DraftTree.empty())
    token, ended = sampler.draw(0)
    sampler.settle()
    stats.tokens = 1
    stats.prefill_seconds = time.perf_counter() - start
    stats.seconds = stats.prefill_seconds
    mark = time.perf_counter()
    session = drafter.open(prompt, target=target, seed=seed)
    try:
        session.observe(_verified(DraftTree.empty(), [], [token], best))
        stats.draft_seconds += time.perf_counter() - mark
        yield Round([token], [Source.PLAIN])
        while not ended:
            done, ended = _round(target, sampler, drafter, session, token, sizing, stats)
            token = done.tokens[-1]
            stats.seconds = time.perf_counter() - start
            yield done
    finally:
        session.close()
        stats.sizes = sizing.reason()


def _round(
    target: Target, sampler: Sampler, drafter: Drafter, session: Session, root: int, sizing: Sizing, stats: Stats
) -> tuple[Round, bool]:
    began = time.perf_counter()
    room = sampler.room
    budget = sizing.budget() if room > 1 else 0
    tree = session.propose(budget) if budget else DraftTree.empty()
    if len(tree) >= room:
        tree = tree.within(room - 1)
    tree = sizing.cut(target.shape(tree))
    drafted = time.perf_counter()

    logits = target.verify(root, tree)
    best = _best(target, drafter, logits)
    sampler.look(logits, tree)
    verified = time.perf_counter()

    path, tokens, ended = sample_then_follow(tree, sampler.draw)
    sampler.settle()
    target.commit(path)
    committed = time.perf_counter()

    session.observe(_verified(tree, path, tokens, best))
    stats.add_round(tree, path, tokens)
    draft = drafted - began + time.perf_counter() - committed
    stats.draft_seconds += draft
    stats.target_seconds += verified - drafted
    sizing.learn(tree, path, len(tokens), target=verified - drafted, draft=draft)
    last = Source.BONUS if len(tree) else Source.PLAIN
    return Round(tokens, [Source.ACCEPTED] * len(path) + [last]), ended


Best = tuple[Int32, Float32] | tuple[None, None]


def _best(target: Target, drafter: Drafter, logits: Logits) -> Best:
    return target.top(logits, drafter.needs.top_k) if drafter.needs.top_k else (None, None)


def _verified(tree: DraftTree, path: list[int], tokens: list[int], best: Best) -> Verified:
    return Verified(
        tree=tree,
        path=np.array(path, np.int32) if path else EMPTY_PATH,
        tokens=np.array(tokens, np.int32),
        top_ids=best[0],
        top_logits=best[1],
    )
