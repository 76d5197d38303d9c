"""Sizing policy: spends what pays by the costs and acceptance it observed, and nothing where nothing does."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from samplers import Branches, EnumeratingSampler, Text, enumerate_outcomes
from speculant.core.drafter import Budget
from speculant.core.tree import DraftTree, Proposal
from speculant.core.verifier import Walk
from speculant.drafters.models.tree_acceptance import LevelAcceptance
from speculant.sizing import acceptance, division, drafting_time, exploration, pass_costs
from speculant.sizing.contract import Sizing
from speculant.sizing.exploration import ExplorationBonus
from speculant.sizing.fixed import FixedSizing
from speculant.sizing.policy import warm_up
from speculant.sizing.state import SequenceSizing
from speculant.sizing.step_cost import StepCost
from speculant.verifiers.forest import Forest
from speculant.verifiers.speculative_sampling import recursive_rejection
from trees import chain, make_tree
from walks import SizedText, adaptive, best_fixed, curve, observe, play, sampled

STEEP, FLAT = curve(1.0), curve(0.001 / 64)  # every node costs a pass; none costs anything
ALIKE = StepCost(np.array([0.0, 16, 64]), np.array([1.0, 1.4, 4]))


def trimmed(sizing: Sizing, draft: DraftTree, state: SequenceSizing | None = None) -> DraftTree:
    """Return what is kept of the draft of one sequence, a new one if none is given."""
    [kept] = sizing.trim([sizing.open() if state is None else state], [draft])
    return kept


def test_a_fixed_size_is_fixed() -> None:
    """The user's number is taken as it is."""
    sizing, tree = FixedSizing(7), chain(0.5, 0.1)
    state = sizing.open()
    assert (sizing.nodes([state]), sizing.trim([state], [tree]), sizing.reason(state)) == ([7], [tree], "")


def test_budgets_have_the_room_of_the_text_and_the_prices_of_the_policy() -> None:
    """Guards what a drafter is told: no more than there is room for, no deeper than asked for, and what time costs."""
    room: dict[str, Any] = {"nodes": 5, "depth": 9, "trees": False, "queries": 3, "branches": 2}
    assert FixedSizing(7, depth=4).open().make_budget(**room) == Budget(**room | {"depth": 4})
    sizing = adaptive(ALIKE)
    state = sizing.open()
    sizing.nodes([state])
    prices = {name: getattr(state, name) for name in ("level_price", "start_price", "node_price")}
    assert state.make_budget(**room) == Budget(**room, **prices)
    assert prices["node_price"] > 0


def test_free_nodes_are_all_spent_and_expensive_ones_are_not() -> None:
    """Where a pass costs the same whatever its size everything pays; where a node costs a pass nothing does."""
    tree = chain(*0.8 ** np.arange(1, 40))
    assert len(trimmed(adaptive(FLAT), tree)) > 25
    assert len(trimmed(adaptive(STEEP), tree)) == 0


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("rate", [0.02, 0.5, 0.9])
def test_close_to_the_best_fixed_size(known: bool, rate: float) -> None:
    """With a measured curve or without, within 5 % of the best size that could have been set, in 600 rounds."""
    found = play(adaptive(ALIKE if known else None), ALIKE, rate, 600)[0]
    assert found > 0.95 * best_fixed(ALIKE, rate)


@pytest.mark.parametrize("known", [True, False])
def test_drafts_fill_the_blocks_that_pay(known: bool) -> None:
    """Guards steps in the cost of rows: from none to a whole block, skipping the rows between, which never pay."""
    rows = np.arange(65.0)
    truth = StepCost(rows, np.where(rows < 1, 1.0, 1.4 + 0.35 * (rows + 1) + 0.4 * (3 - rows % 4) ** 0.5))
    _, sizes = play(adaptive(truth if known else None), truth, 0.93, 600)
    later = sizes[200:]
    assert sum(size % 4 == 3 for size in later) > 0.9 * len(later)


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
def test_sampled_drafts_are_sized_before_they_are_drawn(rate: float) -> None:
    """Guards sampled drafts: near the best fixed length, by the acceptance of each depth, and never cut after that."""
    found = [play(adaptive(ALIKE), ALIKE, rate, 600, draw=True, seed=seed) for seed in range(6)]
    assert np.mean([throughput for throughput, _ in found]) > 0.93 * best_fixed(ALIKE, rate)
    assert max(max(sizes[300:]) for _, sizes in found) < 64


def test_an_overconfident_drafter_is_corrected() -> None:
    """Nodes that are never accepted lose their value, whatever the drafter estimates; then it is asked rarely."""
    sizing, asked = adaptive(curve(2 / 64)), 0
    state = sizing.open()
    for _ in range(300):
        [budget] = sizing.nodes([state])
        asked += budget > 0
        tree = trimmed(sizing, chain(*[0.9] * budget), state)
        observe(sizing, [state], [tree], [0], target=1.0 + len(tree) / 32, draft=0.05 * (budget > 0))
    assert len(tree) == 0
    assert asked < 100


def test_unknown_sizes_are_climbed_one_by_one() -> None:
    """Without a curve no round is more than a size above what was tried: a leap could cost many passes."""
    _, sizes = play(adaptive(None), FLAT, 0.95, 200)
    assert sizes[0] == 0
    assert all(after <= 2 * max(sizes[: i + 1]) + 1 for i, after in enumerate(sizes[1:]))
    assert max(sizes) >= 63


def test_sampled_drafts_are_kept_whole() -> None:
    """Dropping sampled nodes by value would bias the output."""
    tree = sampled(0.1, 0.01)
    assert trimmed(adaptive(STEEP), tree) is tree


def verified(tree: DraftTree, p: np.ndarray, branches: Branches, sampler: EnumeratingSampler) -> Walk:
    """Return an outcome of speculative sampling for a chain, where p is the same after every text."""
    distribution = torch.tensor(p)[None]
    forest = Forest.of([tree], distribution)
    for node, token in enumerate(tree.tokens.tolist()):
        row = torch.tensor([node])
        rate = float(recursive_rejection(forest, row, distribution, torch.zeros(1, 1)).rates[0, 0])
        if not branches.take([1 - rate, rate]):
            rest = recursive_rejection(forest, row, distribution, torch.ones(1, 1)).rest[0]
            own = branches.take(rest.tolist())
            return Walk(list(range(node)), [*tree.tokens[:node].tolist(), own], sampler.commit(own))
        if sampler.commit(token):
            return Walk(list(range(node)), tree.tokens[: node + 1].tolist(), True)
    own = branches.take(p.tolist())
    return Walk(list(range(len(tree))), [*tree.tokens.tolist(), own], sampler.commit(own))


def lengths_chosen(p: np.ndarray, q: np.ndarray, *, drop: bool) -> tuple[dict[Text, float], set[int]]:
    """Return the exact distribution of texts of two tokens, drafted in lengths that the policy chooses, and those.

    The policy has seen 0, 1, ... accepted rounds before. With `drop`, nodes go by the value of their tokens.
    """
    found: dict[Text, float] = defaultdict(float)
    lengths = set[int]()
    for history in range(6):

        def decode(branches: Branches, history: int = history) -> Text:
            sizing = adaptive(curve(0.2))
            state = sizing.open()
            for turn in range(12):
                observe(sizing, [state], [sampled(1.0, 1.0)], [2 * (turn < 2 * history)], target=1.4)
            sampler = EnumeratingSampler(lambda _: p, branches, length=2)
            ended = False
            while not ended:
                maximum = max(0, min(sampler.room, sizing.nodes([state])[0]))
                lengths.add(maximum)
                tokens = [branches.take(q) for _ in range(maximum)]
                if drop:
                    tokens = tokens[: next((i for i, token in enumerate(tokens) if p[token] < q[token]), maximum)]
                plain = make_tree(tokens, range(-1, len(tokens) - 1))
                proposal = Proposal(np.tile(q, (len(tokens), 1))) if tokens else None
                drawn = DraftTree(plain.tokens, plain.parents, plain.weights, proposal)
                [tree] = sizing.trim([state], [drawn])
                walk = verified(tree, p, branches, sampler)
                sizing.observe([state], [tree], [walk], target_seconds=1 + 0.2 * len(tree), draft_seconds=0.0)
                ended = walk.ended
            return tuple(sampler.tokens)

        for text, probability in enumerate_outcomes(decode):
            found[text] += probability / 6
    return found, lengths


def test_adaptive_sizes_do_not_bias_the_output() -> None:
    """Exact by enumeration, also where sizes follow from earlier draws; dropping nodes by their tokens is not."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])
    found, lengths = lengths_chosen(p, q, drop=False)
    assert len(lengths) > 1
    expected = {(a, b): p[a] * p[b] for a in range(3) for b in range(3)}
    assert found == {text: pytest.approx(probability, abs=1e-9) for text, probability in expected.items()}
    biased, _ = lengths_chosen(p, q, drop=True)
    assert max(abs(biased[text] - expected[text]) for text in expected) > 0.01


def test_expensive_drafts_are_sized_before_they_exist() -> None:
    """Where a node takes long to draft, no more are asked for than pay, rather than twice as many to choose from."""
    for seconds, expected in ((0.0, 128), (0.05, 8)):
        sizing = adaptive(curve(0.02))
        state = sizing.open()
        for nodes in [1, 30] * 20:
            sizing.nodes([state])
            observe(sizing, [state], [chain(*[0.9] * nodes)], [1], target=1 + 0.02 * nodes, draft=seconds * nodes)
            state.pausing.left = 0
        observe(sizing, [state], [DraftTree.empty()], [0], target=1.0)  # so that no check of plain decoding is due
        assert 1 <= sizing.nodes([state])[0] <= expected
        assert (sizing.nodes([state])[0] > 8) == (expected > 8)


def test_the_reason() -> None:
    """The reason names the sizes and what they cost; before the first round there is none."""
    sizing = adaptive(STEEP)
    state = sizing.open()
    assert sizing.reason(state) == ""
    observe(sizing, [state], [chain(0.5)], [1], target=2.0, draft=0.1)
    reason = sizing.reason(state)
    assert reason.startswith("1.0 nodes per round, none in 0% of rounds: a pass over 1 takes 2.00 times as long")


def test_rounds_that_measure_plain_decoding_are_no_losses() -> None:
    """Guards the explanation: of drafts that always gain it says nowhere that they would have cost more."""
    sizing = adaptive(FLAT)
    state = sizing.open()
    for _ in range(100):
        [nodes] = sizing.nodes([state])
        [tree] = sizing.trim([state], [chain(0.9, 0.9) if nodes else DraftTree.empty()])
        observe(sizing, [state], [tree], [len(tree)], target=1.0, draft=1e-4)
    assert 0 < state.skipped < 10
    assert "would have cost more" not in sizing.reason(state)


def test_drafting_is_a_cost_too() -> None:
    """Where drafting takes longer than it saves it stops, though every node is accepted."""
    sizing, asked = adaptive(FLAT), 0
    state = sizing.open()
    for _ in range(300):
        [budget] = sizing.nodes([state])
        asked += budget > 0
        tree = trimmed(sizing, chain(0.9) if budget else DraftTree.empty(), state)
        observe(sizing, [state], [tree], [len(tree)], target=1.0, draft=2.0 * (budget > 0))
    assert asked < 80


@pytest.mark.parametrize(("known", "asked"), [(STEEP, 11), (FLAT, 16)])
def test_drafts_grow_by_what_they_cost(known: StepCost, asked: int) -> None:
    """Guards against one confident draft far larger than all before it, also of a new request; free ones may double."""
    sizing = adaptive(known)
    assert sizing.nodes([sizing.open()]) == [asked]


def test_many_sequences_search_for_what_a_pass_has_room_for() -> None:
    """Guards batches: nodes that cannot all be verified are searched for in vain."""
    sizing = adaptive(STEEP)
    states = [sizing.open() for _ in range(32)]
    for state in states:
        state.wanted = 64
    assert max(sizing.nodes(states[:2])) == 63
    assert max(sizing.nodes(states)) <= 4


def test_the_time_of_another_sequence_is_not_that_of_a_node() -> None:
    """Guards batches: as many texts as there are take the time of a search each, whose nodes cost next to nothing."""
    sizing, draft = adaptive(FLAT), DraftTree.empty()
    latency = sizing._latency
    for turn in range(60):
        states = [sizing.open() for _ in range(1 + turn % 4)]
        sizing.nodes(states)
        draft = chain(*[0.9] * (4 + turn % 3))
        observe(sizing, states, [draft] * len(states), [2] * len(states), target=1.0, draft=0.1 * len(states))
    assert latency.drafting.per_node < 0.001
    assert latency.drafting.usual == pytest.approx(0.1, rel=0.1)


def test_learning_counts() -> None:
    """A drafter that learns from rejected nodes gets more of them than their acceptance pays for, for a while."""
    gentle, tree, bonus = curve(0.01), chain(*[0.005] * 20), ExplorationBonus()
    sizing = adaptive(gentle, exploration=bonus)
    state = sizing.open()
    assert len(trimmed(adaptive(gentle), tree)) == 0
    assert len(trimmed(sizing, tree, state)) == 20
    bonus.observe(tree, [3, 4, 5])
    sizing.observe([state], [DraftTree.empty()], [Walk([], [4], False)], target_seconds=1.0, draft_seconds=0.0)
    assert len(trimmed(sizing, tree, state)) == 0


def test_no_round_waits_for_a_compiler() -> None:
    """Guards the first request of a fresh installation: every kernel that a round runs has been compiled before."""
    warm_up()
    kernels = [
        acceptance._count, division._gains, division.best_size, division.least_cost, division.limit_growth,
        drafting_time._observe, exploration._mark, exploration.find_bonus, pass_costs.observe_pass,
    ]  # fmt: skip
    known = [len(kernel.signatures) for kernel in kernels]
    assert min(known) > 0
    sizing = adaptive(FLAT, exploration=ExplorationBonus())
    state = sizing.open()
    for _ in range(3):
        sizing.nodes([state])
        tree = trimmed(sizing, chain(0.9, 0.5), state)
        observe(sizing, [state], [tree], [min(1, len(tree))], target=1.0, draft=0.1)
    observe(sizing, [state], [DraftTree.empty()], [0], target=1.0, draft=0.1)
    assert [len(kernel.signatures) for kernel in kernels] == known


@pytest.mark.parametrize(("cost", "rate"), [(0.1, 0.8), (0.15, 0.6), (0.2, 0.8), (0.3, 0.8)])
def test_expensive_drafts_are_paid_for_once(cost: float, rate: float) -> None:
    """Guards draft models, whose drafting takes time by the level: near the best fixed length, and never given up."""
    sizing, random, levels = adaptive(ALIKE), np.random.default_rng(3), LevelAcceptance()
    state = sizing.open(SizedText(levels.chain_gains))
    tokens, seconds = 0, 0.0
    for turn in range(900):
        [nodes] = sizing.nodes([state])
        draft = chain(*rate ** np.arange(1, nodes + 1)) if nodes else DraftTree.empty()
        [tree] = sizing.trim([state], [draft])
        right = int(np.argmin(np.append(random.random(len(tree)) < rate, False)))
        levels.observe(len(draft), right)
        passed = float(ALIKE.of(np.array([len(tree)]))[0])
        observe(sizing, [state], [tree], [right], target=passed, draft=cost * len(draft))
        if turn >= 100:
            tokens, seconds = tokens + right + 1, seconds + passed + cost * len(draft)
    lengths = np.arange(0, 20)
    best = ((1 - rate ** (lengths + 1)) / (1 - rate) / (ALIKE.of(lengths) + cost * lengths)).max()
    assert tokens / seconds > 0.93 * best


def test_a_drafter_without_room_is_rarely_asked() -> None:
    """Guards texts too short for drafts: asking each round takes time, and once there is room, drafts begin soon."""
    sizing, levels = adaptive(ALIKE), LevelAcceptance()
    state = sizing.open(SizedText(levels.chain_gains))
    asked = []
    for turn in range(300):
        [nodes] = sizing.nodes([state])
        asked.append(nodes > 0)
        room = turn >= 200
        [tree] = sizing.trim([state], [chain(*[0.9] * nodes) if nodes and room else DraftTree.empty()])
        levels.observe(len(tree), len(tree))
        observe(sizing, [state], [tree], [len(tree)], target=1.0, draft=0.01)
    assert sum(asked[:200]) < 30
    assert sum(asked[220:]) >= 78  # plain decoding is measured in the others


def test_passes_that_serve_drafts_are_not_taken_for_plain_ones() -> None:
    """Guards heads whose passes take longer even without nodes: drafts that gain beside these alone are given up."""
    drafted = 0
    for seed in range(4):
        sizing, random, levels = adaptive(None), np.random.default_rng(seed), LevelAcceptance()
        state = sizing.open(SizedText(levels.chain_gains))
        for turn in range(1500):
            [nodes] = sizing.nodes([state])
            found = nodes > 0 and random.random() < 0.7
            draft = chain(0.5) if found else DraftTree.empty().with_levels(1) if nodes else DraftTree.empty()
            [tree] = sizing.trim([state], [draft])
            right = int(len(tree) > 0 and random.random() < 0.5)
            target = (1.5 if len(tree) else 1.4 if nodes else 1.0) * random.lognormal(0, 0.03)
            levels.observe(len(tree), right)
            observe(sizing, [state], [tree], [right], target=target, draft=0.05 * (nodes > 0))
            drafted += len(tree) if turn >= 500 else 0
    assert drafted / 4 < 100


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_noise_of_passes_without_nodes_costs_no_drafts(noise: float) -> None:
    """Guards memories that rarely find something: their passes without nodes are plain ones, however uneven."""
    sizing, random, asked = adaptive(None), np.random.default_rng(1), 0
    state = sizing.open()
    for turn in range(1000):
        [nodes] = sizing.nodes([state])
        [tree] = sizing.trim([state], [chain(0.9, 0.9) if nodes and random.random() < 0.2 else DraftTree.empty()])
        target = (1 + 0.03 * len(tree)) * random.lognormal(0, noise)
        observe(sizing, [state], [tree], [len(tree)], target=target, draft=0.003)
        asked += nodes > 0 and turn >= 100
    assert asked > 0.95 * 900
