"""Merges a head's chain and a memory's tree into one chain, for engines that only verify chains and show head tokens.

vLLM passes on the tokens that its head drafted and nothing else: no probabilities, no hidden states. So both drafts are
put into one tree. A token's probability, given that the previous ones were correct, is a logistic function of what is
known without the head: the memory's own probability of the token, or the rest of it for tokens that it does not know;
whether both drafted it, only one did, or each drafted a different one; and how often head and memory were recently
correct in this request. The path with the most expected accepted tokens is drafted: the head's chain, the memory's, or
the head's first tokens followed by the memory's continuation.

Once the text has continued, every candidate below a correct token is compared with it, drafted or not, so the weights
also learn from drafts that were not chosen. SAM-Decoding (Hu et al. 2025, arXiv 2411.10666) chooses by a fixed
threshold on the match length. The weights are shared by all requests and learned by AdaGrad (Duchi et al. 2011). If an
engine passes a head's probabilities, `drafters.heads.united_session` uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from speculant.core.tree import ROOT, DraftTree, Float64, Int32
from speculant.drafters.models.mixture import MINIMUM, logit

# Who drafted a token; "against" if the other drafted a different one in its place.
BOTH, HEAD, HEAD_AGAINST, MEMORY, MEMORY_AGAINST = range(5)
_FEATURES = 4  # per group: 1, the memory's logit, recent accuracies of head and memory (logits)
_FIRST = np.array(  # approximately as learned on stories and rewrites of the bundled model
    [
        [1.5, 0.5, 0.3, 0.0],
        [0.5, 0.0, 0.6, 0.0],
        [0.0, 0.2, 0.5, 0.0],
        [0.0, 1.0, 0.0, 0.2],
        [-0.8, 1.0, -0.3, 0.1],
    ]
)
_RATE = 0.1  # learning rate
_LATELY = 0.8  # decay of the recent accuracy per token
_PRIOR = 0.6


@dataclass(slots=True)
class ChainCandidates:
    """The head's chain and the memory's tree in one tree of N nodes, parents first.

    Attributes:
        at: length of the text.
        tokens, parents, groups: of each node.
        features: Float64[N, 4].
        head, memory: the chains of both, as nodes.
    """

    at: int
    tokens: list[int]
    parents: list[int]
    groups: list[int]
    features: Float64
    head: list[int]
    memory: list[int]


@dataclass(slots=True)
class AgreementHistory:
    """The state of a request: the recent accuracy of both, and candidates that its text has not reached."""

    head: float = _PRIOR
    memory: float = _PRIOR
    waiting: list[ChainCandidates] = field(default_factory=list)


class ChainUnion:
    """Chooses and combines chains, and learns which tokens are correct, over all requests."""

    def __init__(self) -> None:
        self._weights = _FIRST.copy()
        self._squares = np.full(_FIRST.shape, 1.0)

    def unite(
        self,
        history: AgreementHistory,
        *,
        at: int,
        head: Sequence[int],
        memory: DraftTree,
        maximum: int,
        agreeing: bool = True,
    ) -> DraftTree:
        """Return the chain of at most `maximum` tokens with the highest expected acceptance; weights are probabilities.

        Args:
            history: history of the request; stores the candidates until `observe`.
            at: T, the length of the text.
            head: the tokens that the head drafted.
            memory: the tree that the memory drafted, with probabilities as weights.
            maximum: maximum tokens of the chain.
            agreeing: False keeps both apart, for recordings of a head that only have its correct tokens.
        """
        candidates = _candidates(history, at, list(head[:maximum]), memory.within(depth=maximum), agreeing)
        history.waiting.append(candidates)
        conditional = self._probabilities(candidates.groups, candidates.features)
        joint, best = _expect(candidates.parents, conditional)
        path, node = list[int](), best[ROOT]
        while node != ROOT and len(path) < maximum:
            path.append(node)
            node = best[node]
        tokens = np.array([candidates.tokens[node] for node in path], np.int32)
        weights = np.array([joint[node] for node in path], np.float32)
        return DraftTree.trusted(tokens, np.arange(ROOT, len(path) - 1, dtype=np.int32), weights)

    def observe(self, history: AgreementHistory, text: Sequence[int] | Int32, *, ended: bool = False) -> None:
        """Learn from the candidates that the text has passed.

        Args:
            history: history of the request.
            text: all its tokens, or a view of them.
            ended: whether it is complete.
        """
        while history.waiting:
            candidates = history.waiting[0]
            deepest = max(len(candidates.head), len(candidates.memory))
            if len(text) < candidates.at + deepest and not ended:
                return
            history.waiting.pop(0)
            self._learn(history, candidates, [int(token) for token in text[candidates.at : candidates.at + deepest]])

    def _probabilities(self, groups: Sequence[int], features: Float64) -> Float64:
        scores = (self._weights[list(groups)] * features).sum(axis=1)
        return np.asarray(1 / (1 + np.exp(-scores)), np.float64)

    def _learn(self, history: AgreementHistory, candidates: ChainCandidates, text: list[int]) -> None:
        right = _right(candidates, text)
        if (asked := [node for node in right if right[node] is not None]) and text:
            features, groups = candidates.features[asked], [candidates.groups[node] for node in asked]
            truth = np.array([float(bool(right[node])) for node in asked])
            errors = (truth - self._probabilities(groups, features))[:, None] * features
            gradient = np.zeros_like(self._weights)
            np.add.at(gradient, groups, errors)
            self._squares += gradient**2
            self._weights += _RATE * gradient / np.sqrt(self._squares)
        history.head = _lately(history.head, candidates.head, right)
        history.memory = _lately(history.memory, candidates.memory, right)


def _candidates(
    history: AgreementHistory, at: int, head: list[int], memory: DraftTree, agreeing: bool
) -> ChainCandidates:
    tokens, parents = memory.tokens.tolist(), memory.parents.tolist()
    weights, count = memory.weights.tolist(), len(tokens)
    below: dict[int, dict[int, int]] = {ROOT: {}}
    opinions, rest = list[float](), {ROOT: 1.0}
    for node, (token, parent, weight) in enumerate(zip(tokens, parents, weights, strict=True)):
        below[parent][token], below[node] = node, {}
        opinions.append(weight / max(weights[parent] if parent != ROOT else 1.0, 1e-9))
        rest[parent], rest[node] = rest[parent] - opinions[node], 1.0
    groups = [MEMORY] * count
    parent, chain = ROOT, list[int]()
    for token in head:
        children = below.get(parent, {}) if agreeing else {}
        found = children.get(token)
        if found is None:
            found = len(tokens)
            tokens.append(token)
            parents.append(parent)
            groups.append(HEAD_AGAINST if children else HEAD)
            opinions.append(rest[parent] if children else 0.5)
        else:
            groups[found] = BOTH
        for other in children.values():
            if other != found:
                groups[other] = MEMORY_AGAINST
        chain.append(found)
        parent = found
    known = np.empty((len(tokens), _FEATURES))
    known[:, 0], known[:, 2], known[:, 3] = 1.0, logit(history.head), logit(history.memory)
    p = np.clip(opinions, MINIMUM, 1 - MINIMUM)
    known[:, 1] = np.log(p / (1 - p))
    return ChainCandidates(at, tokens, parents, groups, known, chain, memory.best_chain().tolist() if count else [])


def _expect(parents: Sequence[int], conditional: Float64) -> tuple[list[float], dict[int, int]]:
    """Return each node's joint probability, and its child on the path with the most expected tokens."""
    probabilities, joint = conditional.tolist(), list[float]()
    for parent, p in zip(parents, probabilities, strict=True):
        joint.append(p * (1.0 if parent == ROOT else joint[parent]))
    expected, best = {ROOT: 0.0}, {ROOT: ROOT}
    for node in range(len(joint) - 1, -1, -1):
        whole = joint[node] + expected.get(node, 0.0)
        parent = parents[node]
        if whole > expected.get(parent, 0.0):
            expected[parent], best[parent] = whole, node
        best.setdefault(node, ROOT)
    return joint, best


def _lately(before: float, chain: Sequence[int], right: dict[int, bool | None]) -> float:
    """Return the recent share of correct tokens, updated with the compared tokens of a chain."""
    for node in chain:
        if (found := right.get(node)) is not None:
            before = _LATELY * before + (1 - _LATELY) * found
    return before


def _right(candidates: ChainCandidates, text: list[int]) -> dict[int, bool | None]:
    """Return whether each node with a correct parent is correct; None beyond the end of the text."""
    right: dict[int, bool | None] = {}
    depths: list[int] = []
    for node, (token, parent) in enumerate(zip(candidates.tokens, candidates.parents, strict=True)):
        depth = 0 if parent == ROOT else depths[parent] + 1
        depths.append(depth)
        if parent == ROOT or right.get(parent):
            right[node] = text[depth] == token if depth < len(text) else None
    return right
