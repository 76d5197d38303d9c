"""Greedy decoding by a next-token function, without a model, for drafters that read the target's argmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from speculant.core.drafter import Budget, Session, Verified
from speculant.core.tree import ROOT, DraftTree

Next = Callable[[Sequence[int]], int]


def hashed(vocabulary: int, order: int) -> Next:
    """Return a function of a text's last `order` tokens to its next one."""
    return lambda text: sum((place + 3) * token for place, token in enumerate(text[-order:])) * 7 % vocabulary


def argmaxes(tree: DraftTree, text: Sequence[int], after: Next) -> list[int]:
    """Return the token after each row of a pass below the last token of a text."""
    tokens, parents = (each.tolist() for each in tree.rows(text[-1]))
    paths: list[list[int]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append([*text] if parent == ROOT else [*paths[parent], token])
    return [after(path) for path in paths]


def verify(tree: DraftTree, text: Sequence[int], after: Next) -> Verified:
    """Return the greedy round over a draft below the last token of a text."""
    best = argmaxes(tree, text, after)
    path, node, tokens = list[int](), ROOT, [best[0]]
    while (child := next((each for each in tree.children(node) if tree.tokens[each] == tokens[-1]), None)) is not None:
        path.append(child)
        node = child
        tokens.append(best[node + 1])
    return Verified(
        tree=tree,
        path=np.array(path, np.int32),
        tokens=np.array(tokens, np.int32),
        top_ids=np.array(best, np.int32)[:, None],
    )


def play(
    session: Session, prompt: Sequence[int], after: Next, rounds: int, budget: Budget
) -> tuple[list[int], list[Verified]]:
    """Decode greedily; return the text, prompt included, and the rounds."""
    text, done = [*prompt], list[Verified]()
    for turn in range(rounds + 1):
        tree = session.propose(budget) if turn else DraftTree.empty()  # first the prompt's pass
        done.append(verify(tree, text, after))
        session.observe(done[-1])
        text += done[-1].tokens.tolist()
    return text, done[1:]
