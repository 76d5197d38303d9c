"""A head's draft and a memory's in one tree, with node probabilities learned from how reliable each has been.

Each drafts on its own, the head the most probable paths by its own probabilities, the memory by what it has seen. A
candidate's probability, given that its parent was accepted, is a logistic mixture of both estimates,

    sigmoid(w0 + w1 logit(q) + w2 logit(m) + w3 [no m] + w4 [no q]),

with q from the head and m from the memory, if they have one, and weights learned online from every candidate whose
parent was accepted; the probabilities of a node's candidates never sum to more than 1. The most probable nodes are
drafted. If drafts must be chains, it is the path with the most expected accepted tokens. SAM-Decoding (Hu et al. 2025,
arXiv 2411.10666) switches between retrieval and a head; here both share one tree. All tokens are deterministic, so with
a seed the text is the same as with plain decoding.

Unlike a draft model, which reads the memory's whole tree in one pass (`drafters.models.union`), a head reads one level
per step; so it does not score what the memory proposes beyond the head's own draft.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from speculant.core.drafter import Budget, Session, Verified
from speculant.core.engine import MAX_NODES
from speculant.core.tree import DraftTree, Float64, Int32
from speculant.drafters.heads.head_gain import HeadGain
from speculant.drafters.heads.session import HeadSession
from speculant.drafters.heads.union_kernels import Candidates, follow, learn, unite
from speculant.drafters.models.mixture import Mixture

FIRST_WEIGHTS = (0.5, 0.9, 0.6, 0.0, -0.3)
_REACH_RATE = 0.02  # learning rate per round
_NEARLY = 0.75
_TELLING = 3  # minimum nodes; smaller drafts, as when sizes are first tried, say little about a head's gain


class Reach:
    """How deep the separate drafts of a head and of a memory were recently accepted, over all requests."""

    def __init__(self) -> None:
        self._head, self._memory = 1.0, 0.0

    def observe(self, head: int, memory: int) -> None:
        """Count how many tokens of each draft matched the text."""
        self._head += _REACH_RATE * (head - self._head)
        self._memory += _REACH_RATE * (memory - self._memory)

    def count_proposed(self, minimum: int, maximum: int) -> int:
        """Return how many nodes the memory proposes: as many as are drafted if its reach is close to the head's."""
        return max(minimum, maximum) if self._memory > _NEARLY * self._head else minimum


class UnitedSession(Session):
    """Session of one request: the head's session, the memory's, and the candidates of the last draft.

    Attributes:
        own: session of the head.
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
        """Combine two sessions.

        Args:
            own: session of the head; its drafts are deterministic.
            memory: session of the memory; its node weights are probabilities.
            mixture: mixture shared by all requests, with initial weights `FIRST_WEIGHTS`.
            reach: statistics shared by all requests.
            head_gain: statistics shared by all requests.
            proposed: nodes of the tree that the memory proposes, or more if it reaches nearly as deep as the head.
        """
        self.own, self._memory, self._mixture, self._reach, self._proposed = own, memory, mixture, reach, proposed
        self._head_gain, self._expected = head_gain, 0.0
        self._drafted, self._recalled = DraftTree.empty(), DraftTree.empty()  # drafts of the head and of the memory
        self._candidates: Candidates | None = None  # candidates of the last draft

    def propose(self, budget: Budget) -> DraftTree:
        """Return the most probable paths of both, or the memory's draft alone if the head's time is not worth it."""
        if not self.recall(budget):
            return self.draft_from_memory(budget)
        return self.unite(self.own.propose(self.raise_budget(budget)), budget)

    def recall(self, budget: Budget) -> bool:
        """Let the memory draft; return whether the head should draft too, which is always so if time has no price."""
        self._drafted, self._candidates = DraftTree.empty(), None
        nodes = self._reach.count_proposed(self._proposed, budget.nodes)
        self._recalled = self._memory.propose(Budget(nodes=nodes, depth=budget.depth, trees=budget.trees))
        self._expected = float(self._recalled.weights.sum())
        # The memory's own draft would fill the same rows of the pass, so the head pays only for the time of its levels.
        level_price = max(0.0, budget.level_price - budget.node_price)
        return not budget.level_price or self._head_gain.pays(
            self._expected, start_price=budget.start_price, level_price=level_price
        )

    def draft_from_memory(self, budget: Budget) -> DraftTree:
        """Return the memory's draft alone, which took no level of the head."""
        return self._recalled.head(budget.nodes).with_levels(0)

    @staticmethod
    def raise_budget(budget: Budget) -> Budget:
        """Return the head's budget: more nodes than are drafted, so that it also rates the memory's candidates."""
        return replace(budget, nodes=max(budget.nodes, min(2 * MAX_NODES, 2 * budget.nodes)))

    def unite(self, drafted: DraftTree, budget: Budget) -> DraftTree:
        """Return the most probable paths within a budget, from the head's draft and the memory's."""
        self._drafted = drafted
        both = [(draft.tokens, draft.parents, draft.weights) for draft in (drafted, self._recalled)]
        maximum = budget.nodes if budget.trees else len(drafted) + len(self._recalled)
        candidates, kept = unite(*both, self._mixture.weights, maximum)
        self._candidates, draft = Candidates(*candidates), DraftTree.trusted(*kept)
        draft = draft.within(depth=budget.depth, trees=budget.trees).head(budget.nodes)
        return draft.with_levels(self.own.levels if len(drafted) else 0)

    def forecast(self, nodes: int) -> Float64:
        """Return an empty forecast: the head's draft ends on its own where a level does not pay off."""
        return np.empty(0)

    @property
    def selective(self) -> bool:
        return True

    def unread(self) -> int:
        return self.own.unread()

    def observe(self, verified: Verified) -> None:
        """Update the head, the memory and the mixture with the target's choices."""
        tokens, recalled = verified.tokens, self._recalled
        if (candidates := self._candidates) is not None:
            self._mixture.update(lambda weights: learn(candidates, tokens, weights))
        self.own.text.observe(verified)
        if len(self._drafted):
            path = follow(self._drafted.tokens, self._drafted.parents, tokens)
            self.own.learn(self._drafted, path.tolist())
            right = follow(recalled.tokens, recalled.parents, tokens)
            self._reach.observe(len(path), len(right))
            size = len(verified.tree)
            if size >= _TELLING:  # alone, the memory would have had its first `size` nodes verified
                alone = int(np.count_nonzero(right < size))
                self._head_gain.observe(self._expected, len(verified.path) - alone, self.own.levels)
        self._drafted, self._recalled, self._candidates = DraftTree.empty(), DraftTree.empty(), None
        self._memory.observe(verified)

    def follow(self, tokens: Int32) -> None:
        """Let the memory learn what was committed during a pause; the head starts afresh."""
        self.own.follow(tokens)
        self._memory.follow(tokens)

    def close(self) -> None:
        self._memory.close()
        self.own.close()
