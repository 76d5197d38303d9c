"""Sample, then follow: the accept rule for drafts whose tokens were chosen, not sampled.

At each node the target's own next token is drawn exactly as plain decoding would draw it, committed, and
the child that holds it is followed; where no child does, the round ends. Losslessness needs no argument
about probabilities: the draft decides only how much of the target's text is computed in one pass, never
what it says, so processors, stop rules and random streams see every token once, in order. The chance to go
on from a node is the target's summed probability of its children, which is the best any rule can do with
a fixed set of candidates (the tree used as a cache of target distributions: SpecExec, Svirschevski et al.,
2024, arXiv 2406.02532).
"""

from __future__ import annotations

from collections.abc import Callable

from speculant.core.tree import ROOT, DraftTree


def sample_then_follow(tree: DraftTree, draw: Callable[[int], tuple[int, bool]]) -> tuple[list[int], list[int], bool]:
    """Walk the tree along the target's own tokens.

    Args:
        tree: the draft; its tokens must have been chosen, not sampled.
        draw: given a row of the target pass (0: the root, i + 1: node i), draws and commits the target's next
            token; returns it and whether the text ends with it. Called once per committed token, in order.

    Returns:
        The accepted nodes [A], the committed tokens [A + 1], and whether the text has ended.
    """
    children: dict[tuple[int, int], int] = {}
    for node, key in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
        children.setdefault(key, node)
    path: list[int] = []
    tokens: list[int] = []
    node = ROOT
    while True:
        token, ended = draw(node + 1)
        tokens.append(token)
        child = children.get((node, token))
        if ended or child is None:
            return path, tokens, ended
        path.append(child)
        node = child
