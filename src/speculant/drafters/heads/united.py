"""A head's draft and a memory's in one tree, each node as probable as both together have been right.

Both draft by themselves, the head the most probable paths by its own probabilities, the memory by what it has seen. A
candidate's probability, given that its parent was accepted, is a logistic mixture of both opinions,

    sigmoid(w0 + w1 logit(q) + w2 logit(m) + w3 [no m] + w4 [no q]),

with q of the head, m of the memory, where they have one, and weights learned online from every candidate whose parent
was accepted; candidates of a node never add up to more than 1. The most probable nodes are drafted. Where drafts must
be chains, it is the path on which most tokens are expected to be accepted. SAM-Decoding (Hu et al. 2025, arXiv
2411.10666) switches between retrieval and a head; here both share one tree. All tokens are chosen, so with a seed the
text is plain decoding's.

Unlike a draft model, which reads the memory's whole tree in one pass (`drafters.models.union`), a head reads a level a
step; so it does not judge what the memory proposes beyond its own draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from speculant.core.drafter import Budget, Session, Verified
from speculant.core.tree import ROOT, DraftTree, Float64
from speculant.drafters.heads.head_gain import HeadGain
from speculant.drafters.heads.session import HeadSession
from speculant.drafters.models.level_session import heaviest
from speculant.drafters.models.mixture import Mixture, logit
from speculant.drafters.models.shapes import MOST_NODES

FIRST_WEIGHTS = (0.5, 0.9, 0.6, 0.0, -0.3)
_REACH_RATE = 0.02  # per round
_NEARLY = 0.75
_TELLING = 3  # nodes; smaller drafts, as while sizes are tried at first, say little of what a head gains


class Reach:
    """How far the own drafts of a head and of a memory were right of late, over all requests."""

    def __init__(self) -> None:
        self._head, self._memory = 1.0, 0.0

    def observe(self, head: int, memory: int) -> None:
        """Take how many tokens of each draft were those of the text."""
        self._head += _REACH_RATE * (head - self._head)
        self._memory += _REACH_RATE * (memory - self._memory)

    def proposed(self, least: int, most: int) -> int:
        """Return how many nodes the memory proposes: as many as are drafted where it reaches nearly as far."""
        return max(least, most) if self._memory > _NEARLY * self._head else least


@dataclass(slots=True)
class United:
    """Two drafts in one trie.

    Attributes:
        tokens, parents: of its nodes, parents first.
        opinions: by node, the joint probabilities of the head and of the memory; None where it has none.
        below: by node, the root too, its children by token.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    opinions: list[list[float | None]] = field(default_factory=list)
    below: dict[int, dict[int, int]] = field(default_factory=lambda: {ROOT: {}})

    def add(self, draft: DraftTree, whose: int) -> None:
        """Add a draft; `whose` is 0 for the head's, 1 for the memory's."""
        places = {ROOT: ROOT}
        nodes = zip(draft.tokens.tolist(), draft.parents.tolist(), draft.weights.tolist(), strict=True)
        for place, (token, parent, weight) in enumerate(nodes):
            above = places[parent]
            node = self.below[above].get(token)
            if node is None:
                node = self.below[above][token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(above)
                self.opinions.append([None, None])
                self.below[node] = {}
            self.opinions[node][whose] = weight
            places[place] = node

    def features(self, parent: int) -> Float64:
        """Return Float64[C, 5] of the candidates below a node.

        Where a drafter has an opinion of some of them, the others are less probable to it than the least of those.
        """
        above: Sequence[float | None] = (1.0, 1.0) if parent == ROOT else self.opinions[parent]
        nodes, columns = [*self.below[parent].values()], list[list[float | None]]()
        for whose, whole in enumerate(above):
            joint = [self.opinions[node][whose] for node in nodes]
            known = [each for each in joint if each is not None]
            if whole is None or not known:
                columns.append([None] * len(nodes))
            else:
                least = min(known) / 2
                columns.append([(least if each is None else each) / max(whole, 1e-9) for each in joint])
        return np.array(
            [
                (1.0, *(0.0 if p is None else logit(p) for p in (q, m)), float(m is None), float(q is None))
                for q, m in zip(*columns, strict=True)
            ]
        )


class UnitedSession(Session):
    """One request: the head's session, the memory's, and the candidates of the last draft.

    Attributes:
        own: of the head.
    """

    def __init__(
        self,
        own: HeadSession,
        memory: Session,
        mixture: Mixture,
        reach: Reach,
        head_gain: HeadGain,
        proposed: int,
    ) -> None:
        """Unite two sessions.

        Args:
            own: of the head; its drafts are of chosen tokens.
            memory: its node weights are probabilities.
            mixture: of all requests, with `FIRST_WEIGHTS`.
            reach: of all requests.
            head_gain: of all requests.
            proposed: nodes of the tree that the memory proposes, more where it reaches nearly as far as the head.
        """
        self.own, self._memory, self._mixture, self._reach, self._proposed = own, memory, mixture, reach, proposed
        self._head_gain, self._expected = head_gain, 0.0
        self._drafted, self._recalled = DraftTree.empty(), DraftTree.empty()  # by the head, and by the memory
        self._seen: dict[tuple[int, ...], tuple[list[int], Float64]] = {}  # by the tokens from the root

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most probable paths of both, or of the memory alone where the head's time is worth more."""
        if not self.recall(budget):
            return self.recalled(budget)
        return self.unite(self.own.propose(self.asked(budget)), budget)

    def recall(self, budget: Budget) -> bool:
        """Let the memory draft; return whether the head should, which it always should where time has no price."""
        self._drafted, self._seen = DraftTree.empty(), {}
        nodes = self._reach.proposed(self._proposed, budget.nodes)
        self._recalled = self._memory.propose(Budget(nodes=nodes, depth=budget.depth, trees=budget.trees))
        self._expected = float(self._recalled.weights.sum())
        return not budget.level_price or self._head_gain.pays(
            self._expected, start_price=budget.start_price, level_price=budget.level_price
        )

    def recalled(self, budget: Budget) -> DraftTree:
        """Return the memory's draft alone, which took no level of the head."""
        return self._recalled.head(budget.nodes).with_levels(0)

    @staticmethod
    def asked(budget: Budget) -> Budget:
        """Return what the head is asked for: more nodes than are drafted, so that it has an opinion of the memory's."""
        return replace(budget, nodes=max(budget.nodes, min(2 * MOST_NODES, 2 * budget.nodes)))

    def unite(self, drafted: DraftTree, budget: Budget) -> DraftTree:
        """Return the most probable paths of the head's draft within a budget and of what the memory recalled."""
        self._drafted = drafted
        united = United()
        united.add(drafted, 0)
        united.add(self._recalled, 1)
        weights, paths = [0.0] * len(united.tokens), dict[int, tuple[int, ...]]()
        paths[ROOT] = ()
        for parent in range(ROOT, len(united.tokens)):
            if parent != ROOT:
                paths[parent] = (*paths[united.parents[parent]], united.tokens[parent])
            if children := united.below[parent]:
                features = united.features(parent)
                self._seen[paths[parent]] = list(children), features
                joint = 1.0 if parent == ROOT else weights[parent]
                for node, p in zip(children.values(), self._mixture.probabilities(features).tolist(), strict=True):
                    weights[node] = joint * p
        most = budget.nodes if budget.trees else len(weights)
        draft = heaviest(united.tokens, united.parents, weights, most)
        draft = draft.within(depth=budget.depth, trees=budget.trees).head(budget.nodes)
        return draft.with_levels(self.own.levels if len(drafted) else 0)

    def forecast(self, nodes: int) -> Float64:
        """Return nothing: the head's draft ends by itself where a level does not pay."""
        return np.empty(0)

    def observe(self, verified: Verified) -> None:
        """Let the head, the memory and the mixture learn what the target chose."""
        tokens = verified.tokens.tolist()
        self._mixture.learn_path(self._seen, tokens)
        self.own.text.observe(verified)
        if len(self._drafted):
            path = _follow(self._drafted, tokens)
            self.own.learn(self._drafted, path)
            self._reach.observe(len(path), len(_follow(self._recalled, tokens)))
            if len(verified.tree) >= _TELLING:  # alone, the memory would have had as many nodes verified
                alone = _follow(self._recalled.head(len(verified.tree)), tokens)
                self._head_gain.observe(self._expected, len(verified.path) - len(alone), self.own.levels)
        self._drafted, self._recalled, self._seen = DraftTree.empty(), DraftTree.empty(), {}
        self._memory.observe(verified)

    def close(self) -> None:
        self._memory.close()
        self.own.close()


def _follow(draft: DraftTree, tokens: Sequence[int]) -> list[int]:
    """Return the nodes of a draft that lie on a path of tokens."""
    path, node = list[int](), ROOT
    for token in tokens:
        found = [child for child in draft.children(node) if draft.tokens[child] == token]
        if not found:
            break
        node = found[0]
        path.append(node)
    return path
