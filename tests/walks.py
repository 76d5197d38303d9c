"""Rounds for tests of sizing, without a model: drafts, what was accepted of them, and seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from speculant.core.tree import DraftTree, Proposal, Queries
from speculant.core.verifier import Walk
from speculant.sizing.acceptance import AcceptanceModel
from speculant.sizing.contract import Sizing
from speculant.sizing.exploration import ExplorationBonus
from speculant.sizing.latency import LatencyModel
from speculant.sizing.policy import AdaptiveSizing
from speculant.sizing.state import SequenceSizing
from speculant.sizing.step_cost import StepCost
from speculant.sizing.throughput import Throughput
from trees import chain

Stall = Callable[[int, np.random.Generator], float]


@dataclass(slots=True)
class SizedText:
    """What a policy asks of a session: the forecast of its drafts, if any, and the tokens to read before one."""

    gains: Callable[[int], np.ndarray] | None = None
    tokens: int = 0
    selective: bool = False

    def forecast(self, nodes: int) -> np.ndarray | None:
        """Return what drafts gain."""
        return None if self.gains is None else self.gains(nodes)

    def unread(self) -> int:
        """Return the number of tokens."""
        return self.tokens

    def take(self) -> int:
        """Read the tokens; return how many they were."""
        found, self.tokens = self.tokens, 0
        return found


def sampled(*weights: float) -> DraftTree:
    """Return a chain of sampled nodes."""
    tree = chain(*weights)
    return DraftTree(tree.tokens, tree.parents, tree.weights, Proposal(np.full((len(weights), 8), 0.125)))


def asking(draft: DraftTree, rows: int) -> DraftTree:
    """Return the draft with so many query rows beside it."""
    return replace(draft, queries=Queries(np.arange(rows, dtype=np.int32), np.arange(-1, rows - 1, dtype=np.int32)))


def curve(per_node: float, *, maximum: int = 64) -> StepCost:
    """Return the cost of passes: a second, and so much for each row beside the first."""
    return StepCost(np.array([0.0, maximum]), np.array([1.0, 1.0 + maximum * per_node]))


def adaptive(
    known: StepCost | None, *, maximum: int = 64, exploration: ExplorationBonus | None = None
) -> AdaptiveSizing:
    """Return the policy of a first stream or batch."""
    return AdaptiveSizing(LatencyModel(maximum=maximum, known=known), AcceptanceModel(), Throughput(), exploration)


def observe(
    sizing: Sizing,
    states: Sequence[SequenceSizing],
    drafts: Sequence[DraftTree],
    accepted: Sequence[int],
    *,
    target: float,
    draft: float = 0.0,
    tokens: int | None = None,
) -> None:
    """Let a policy learn from a round in which so many first nodes of each chain were accepted.

    `tokens` are those of each sequence, where they are not one more than its accepted nodes.
    """
    walks = [Walk(list(range(n)), [7] * (n + 1 if tokens is None else tokens), False) for n in accepted]
    sizing.observe(states, drafts, walks, target_seconds=target, draft_seconds=draft)


def play(
    sizing: Sizing,
    truth: StepCost,
    rate: float,
    rounds: int,
    *,
    seed: int = 0,
    stall: Stall = lambda _turn, random: 1 + 0.05 * random.random(),
    draw: bool = False,
) -> tuple[float, list[int]]:
    """Draft chains whose every next node is right with a probability that the drafter knows.

    Returns the tokens per second of an undisturbed machine, and the sizes.
    """
    random, tokens, seconds, sizes = np.random.default_rng(seed), 0, 0.0, list[int]()
    state = sizing.open()
    for turn in range(rounds):
        [budget] = sizing.nodes([state])
        weights = [1.0] * budget if draw else rate ** np.arange(1, budget + 1)
        draft = (sampled if draw else chain)(*weights) if budget else DraftTree.empty()
        [tree] = sizing.trim([state], [draft])
        right = int(np.argmin(np.append(random.random(len(tree)) < rate, False)))
        cost = float(truth.of(np.array([len(tree)]))[0])
        observe(sizing, [state], [tree], [right], target=cost * stall(turn, random))
        tokens, seconds = tokens + right + 1, seconds + cost
        sizes.append(len(tree))
    return tokens / seconds, sizes


def best_fixed(truth: StepCost, rate: float) -> float:
    """Return the throughput that is expected of the best size that could have been set."""
    nodes = np.array([0, 1, 2, 4, 8, 12, 16, 24, 32])
    return float((((1 - rate ** (nodes + 1)) / (1 - rate)) / truth.of(nodes)).max())
