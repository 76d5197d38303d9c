"""How many nodes a round should spend: as many as pay, none where nothing does.

A node is worth the probability that it is accepted, a pass over more nodes costs more time, and time is worth the
tokens that could be had in it elsewhere. So with v_i the value of node i, c(n) the seconds of a round with n nodes and
r the tokens per second of late, the best size is the n that maximises

    1 + v_1 + ... + v_n - r c(n)

which is Dinkelbach's way (1967) to maximise a ratio, here tokens over time, taken over all rounds rather than one
(Sequoia, Chen et al. 2024, arXiv 2402.12374, and TurboSpec, Liu et al. 2024, arXiv 2406.14066, maximise it per round).
Drafters overrate their nodes, so v_i is what nodes of such a weight have been worth lately in this request. Costs are
measured in every round; a curve that `speculant tune` stored only spares the first rounds from trying sizes.

Drafting is a cost too, by the node; not asking at all pays only where the drafts of late were worth less than the time
they took. Drafters that learn from rejected nodes get a bonus for those (see `lessons`).

Sampled nodes may not be dropped by value. For them the size is set before the draft exists, from late values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from speculant.core.tree import DraftTree
from speculant.sizing.acceptance import Values
from speculant.sizing.exploration import Lessons
from speculant.sizing.latency import RoundCost

_LONGEST_PAUSE = 8
_PAYING = 0.9  # per round asked


class Sizing(Protocol):
    """What the round loop asks about sizes, one per request."""

    def budget(self) -> int:
        """Return the most nodes to ask the drafter for; 0 means that it need not draft."""

    def cut(self, tree: DraftTree) -> DraftTree:
        """Return the part of the draft that is worth its time."""

    def learn(
        self, tree: DraftTree, path: Sequence[int], tokens: Sequence[int], *, target: float, draft: float
    ) -> None:
        """Take in a round: its draft, the path accepted, the tokens committed, and its seconds.

        `target` are those of the target's pass, `draft` those of drafting and learning.
        """

    def reason(self) -> str:
        """Return one sentence on why sizes were what they were; empty if there is nothing to say."""


class FixedSize:
    """The same most nodes in every round."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def budget(self) -> int:
        return self._nodes

    def cut(self, tree: DraftTree) -> DraftTree:
        return tree

    def learn(
        self, tree: DraftTree, path: Sequence[int], tokens: Sequence[int], *, target: float, draft: float
    ) -> None:
        pass

    def reason(self) -> str:
        return ""


class BestSize:
    """Spends what pays."""

    def __init__(self, cost: RoundCost, values: Values, lessons: Lessons | None = None) -> None:
        """Begin a request.

        Args:
            cost: of passes of this model; requests share it.
            values: of nodes in requests so far; this one goes its own way from there, and teaches it.
            lessons: shared; for drafters that learn from rejected nodes, else None.
        """
        self._cost, self._shared, self._values, self._lessons = cost, values, Values(values), lessons
        self._nodes = np.arange(len(cost.curve))
        self._wanted = float(cost.sizes[-1])  # the largest size of late, falling slowly
        self._pause, self._left = 0, 0  # rounds without a draft: how many at a time, and still to come
        self._asked, self._gain = 0, 0.0  # in this round: nodes, and what drafting is expected to bring
        self._gained, self._asks = 0.0, 0.0  # of late: what drafts were expected to bring, in tokens, and how many
        self._text = [-1, -1]  # the token before the root, and the root
        self._spent, self._rounds, self._skipped, self._paused = 0, 0, 0, 0

    def budget(self) -> int:
        self._gain = 0.0
        self._asked = 0 if self._left else min(self._cost.most, max(4, int(2 * self._wanted)))
        return self._asked

    def cut(self, tree: DraftTree) -> DraftTree:
        if tree.proposal is not None or not len(tree):
            return tree
        worth = self._values.of(tree)
        if self._lessons is not None:
            worth += self._lessons.worth(tree, self._text[1])
        n = len(tree)
        cost = self._cost.curve[: n + 1] + self._cost.drafting * self._nodes[: n + 1]
        net = np.cumsum(worth) - self._values.rate * (cost[1:] - cost[0])
        best = int(np.argmax(net))
        self._gain = max(0.0, float(net[best]))
        return tree.head(best + 1 if net[best] > 0 else 0)

    def learn(
        self, tree: DraftTree, path: Sequence[int], tokens: Sequence[int], *, target: float, draft: float
    ) -> None:
        n, cost = len(tree), self._cost
        cost.learn(n, target)
        drafting = cost.learn_drafting(n, draft) if self._asked else 0.0
        for values in (self._values, self._shared):
            if n:
                values.learn(tree, path)
            values.learn_rate(len(tokens), float(cost.curve[n]) + drafting)
        text = [*self._text, *tokens]
        if self._lessons is not None:
            self._lessons.learn(tree, text)
        self._text = text[-2:]
        self._rounds += 1
        self._spent += n
        self._skipped += n == 0
        self._paused += not self._asked
        self._plan(n)

    def _plan(self, nodes: int) -> None:
        """Decide how much to ask for next, and whether to ask at all."""
        if self._left:
            self._left -= 1
        elif self._asked:
            self._wanted = max(float(nodes), 0.9 * self._wanted)
            if self._drawn(nodes):
                return
            self._gained = _PAYING * self._gained + self._gain
            self._asks = _PAYING * self._asks + 1
            took = self._asks * self._values.rate * self._cost.usual_drafting
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause + 1) if self._gained < took else 0
            self._left = self._pause

    def _drawn(self, nodes: int) -> bool:
        """Say whether the draft was left whole unseen, as sampled ones are."""
        return nodes > 0 and self._gain == 0.0

    def reason(self) -> str:
        if not self._rounds:
            return ""
        mean = self._spent / self._rounds
        most = max(1, min(round(mean) or 1, len(self._cost.curve) - 1))
        one, some = self._cost.of(np.array([0, most]))
        why = f"a pass over {most} takes {some / one:.2f} times as long as one over none ({one * 1e3:.1f} ms)"
        words = f"{mean:.1f} nodes a round, none in {self._skipped / self._rounds:.0%} of rounds: {why}"
        if self._paused:
            words += f"; in {self._paused / self._rounds:.0%} drafting was not worth its own time"
        if self._lessons is not None and self._text[1] >= 0:
            words += "; some nodes are spent because the drafter learns from rejected ones too"
        return words + "."


def warm_up() -> None:
    """Compile what choosing sizes runs, so that no request pays for it."""
    sizing, node = BestSize(RoundCost(most=1), Values(), Lessons()), DraftTree.from_paths([[0]])
    sizing.cut(node)
    sizing.learn(node, [0], [0, 0], target=1.0, draft=0.0)
