"""Pauses of drafting: short where asking costs little, long enough where it costs much, and over when drafts pay."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from speculant.core.tree import DraftTree
from speculant.sizing.acceptance import AcceptanceModel
from speculant.sizing.history import PausingHistory
from speculant.sizing.latency import LatencyModel
from speculant.sizing.pausing import Pausing
from speculant.sizing.policy import AdaptiveSizing
from speculant.sizing.throughput import Throughput
from trees import chain, make_tree
from walks import SizedText, adaptive, curve, observe


def asked(pausing: Pausing, gain: float, took: float, rounds: int, *, hoped: float | None = None) -> int:
    """Return in how many rounds a draft is asked for, where all gain and take the same, and are hoped to gain more."""
    count = 0
    for _ in range(rounds):
        if pausing.left:
            pausing.skip()
        else:
            pausing.observe(gain if hoped is None else hoped, took, 1.0, gain - took)
            count += 1
    return count


@pytest.mark.parametrize("took", [0.2, 0.5, 0.9])
def test_asking_in_vain_costs_a_small_share(took: float) -> None:
    """Guards expensive drafting that gains nothing: 2 % of the time, once pauses are as long as they get."""
    pausing = Pausing()
    asked(pausing, 0.0, took, 300)
    assert asked(pausing, 0.0, took, 2000) * took / 2000 < 0.02


def test_cheap_drafting_pauses_for_few_rounds() -> None:
    """Guards drafters that cost little: a text that begins to repeat itself is noticed soon."""
    pausing = Pausing()
    assert asked(pausing, 0.0, 0.02, 900) >= 98
    begun = pausing.begin()
    assert (begun.pause, begun.left) == (0, 0)


def test_drafts_that_pay_end_a_pause() -> None:
    """Guards the way back: when drafts gain more than they take again, every round asks again."""
    pausing = Pausing()
    asked(pausing, 0.0, 0.5, 500)
    asked(pausing, 2.0, 0.5, 200)
    assert asked(pausing, 2.0, 0.5, 50) == 50


@pytest.mark.parametrize("took", [0.1, 0.4, 2.0])
def test_promises_that_are_never_kept_cost_a_small_share(took: float) -> None:
    """Guards drafters that stay sure of themselves, and sizes spent on learning: what was lost ends them, 1 % of it."""
    pausing = Pausing()
    asked(pausing, 0.0, took, 1000, hoped=5.0)
    assert asked(pausing, 0.0, took, 5000, hoped=5.0) * took / 5000 < 0.01
    assert asked(pausing, 3.0, took, 5000) > 4000


def test_drafts_that_take_passes_are_given_up_soon() -> None:
    """Guards expensive heads: where a draft takes two passes, short pauses would cost as much as the first drafts."""
    pausing = Pausing()
    assert asked(pausing, 0.0, 1.75, 300, hoped=5.0) * 1.75 < 11
    assert asked(pausing, 0.0, 1.75, 900, hoped=5.0) * 1.75 < 0.01 * 900


def test_a_drafter_that_learns_gets_another_chance() -> None:
    """Guards young memories: what they lost at first does not hold them back once they gain a little."""
    shares = {True: 0.0, False: 0.0}
    for learns in shares:
        for seed in range(8):
            pausing, random = Pausing.begun(1, learns=learns), np.random.default_rng(seed)
            asked(pausing, 0.0, 0.3, 480, hoped=0.5)
            for _ in range(600):
                if pausing.left:
                    pausing.skip()
                else:
                    pausing.observe(0.5, 0.3, 1.0, float(random.random() < 0.35) - 0.3)
                    shares[learns] += 1 / 600 / 8
    assert shares[True] > 0.8 > 0.7 > shares[False]


def test_chances_of_a_drafter_that_never_gains_cost_a_small_share() -> None:
    """Guards memories that stay useless: the credit of fresh beginnings is small beside the text that earns it."""
    assert asked(Pausing.begun(1, learns=True), 0.0, 0.3, 10_000, hoped=0.5) * 0.3 < 0.01 * 10_000


def test_a_new_request_may_find_out_for_itself() -> None:
    """Guards requests after a hopeless one: a few cheap drafts at once, which go on where they gain."""
    pausing = Pausing()
    asked(pausing, 0.0, 0.1, 1000, hoped=5.0)
    assert not pausing.left
    asked(pausing, 0.0, 0.1, 1, hoped=5.0)
    assert pausing.left
    assert asked(pausing.begin(), 1.0, 0.1, 100) == 100
    assert 2 < asked(pausing.begin(), 0.0, 0.1, 100, hoped=5.0) < 15


def test_a_new_request_goes_on_with_a_long_pause() -> None:
    """Guards short requests: each would ask in vain anew."""
    pausing, count = Pausing(), 0
    for _ in range(100):
        pausing = pausing.begin()
        count += asked(pausing, 0.0, 0.8, 20)
    assert count < 60


def test_a_mean_has_every_part_of_a_request() -> None:
    """Guards parts that are added later: each is averaged, but the initial credit, which is the first one's."""
    names = [field.name for field in fields(Pausing)]
    low = Pausing(**{name: float(place) for place, name in enumerate(names)})
    high = Pausing(**{name: place + 4.0 for place, name in enumerate(names)})
    expected = [place + 2.0 * (name != "credit") for place, name in enumerate(names)]
    assert [getattr(Pausing.mean_of([low, high]), name) for name in names] == expected
    assert Pausing.mean_of([low]) == low
    assert Pausing.mean_of([low]) is not low


def test_a_new_request_does_not_inherit_a_pause_where_others_gained() -> None:
    """Guards batches of known texts: the mean of their pauses is long, but their drafts have more than paid for it."""
    pausing = Pausing(pause=40.0, left=30.0, balance=12.0)
    assert pausing.begin().left == 0
    pausing.balance = 4.0
    assert pausing.begin().left == 30


def test_drafts_after_a_pause_are_two() -> None:
    """Guards expensive starts: the first draft after a pause reads what it missed, the next tells what they take."""
    pausing = Pausing()
    asked(pausing, 0.0, 0.5, 200)
    pausing.left, pausing.balance = 0, 1.0
    pausing.observe(0.0, 0.9, 1.0, -0.9, resumed=True)
    assert not pausing.left
    pausing.observe(0.0, 0.5, 1.0, -0.5)
    assert pausing.left


def test_drafts_that_gain_more_than_is_expected_go_on() -> None:
    """Guards heads that gain a little in the mean and lose in many rounds: bad luck ends few of them."""
    shares = list[float]()
    for seed in range(20):
        pausing, random = Pausing(), np.random.default_rng(seed)
        for _ in range(300):
            if pausing.left:
                pausing.skip()
            else:
                pausing.observe(0.5, 0.9, 1.0, random.integers(0, 4) * 0.75 - 0.95)  # 0.175 in the mean
        shares.append(pausing.seen / 300)
    assert np.median(shares) > 0.95
    assert np.mean(np.array(shares) > 0.8) >= 0.8


def test_credit_outweighs_expectations() -> None:
    """Guards drafters that expect less than they gain: drafts that paid go on until much of the credit is spent."""
    pausing = Pausing()
    for _ in range(100):
        pausing.observe(0.3, 0.5, 1.0, 0.5)
    assert not pausing.left
    lost = 0
    while not pausing.left:
        pausing.observe(0.3, 0.5, 1.0, -0.5)
        lost += 1
    assert 10 < lost < 25


def forecast(_nodes: int) -> np.ndarray:
    """Return that nothing is known but that drafts take time by the level."""
    return np.empty(0)


def test_drafts_that_take_passes_are_tried_at_sizes_that_may_pay() -> None:
    """Guards heads that draft a block in one pass: trees fill whatever is allowed, and small ones cannot pay."""
    sizing, sizes = adaptive(None), list[int]()
    state = sizing.open(SizedText(forecast))
    for _ in range(100):
        [nodes] = sizing.nodes([state])
        wide = make_tree(range(nodes), [-1] * nodes, [0.5] * nodes) if nodes else DraftTree.empty()
        [tree] = sizing.trim([state], [wide])
        observe(sizing, [state], [tree], [min(1, len(tree))], target=1 + 0.02 * len(tree), draft=1.75 * bool(nodes))
        sizes += [nodes] if nodes else []
    assert sum(size < 7 for size in sizes) <= 2
    assert len(sizes) <= 12


def run(
    *,
    first: float,
    further: float,
    rate: float,
    requests: int,
    rounds: int = 48,
    reading: float = 0.0,
    base: float = 0.0,
) -> tuple[float, float]:
    """Decode with trees that end where a level does not pay; return the time of plain decoding per time, and levels.

    Args:
        first: what drafting takes for the first level, in plain passes.
        further: for each further one.
        rate: of acceptance, of one node a level.
        requests, rounds: their number, and that of rounds in each.
        reading: what it takes to read the prompt, and as much for every 32 rounds without a draft.
        base: what a draft adds to the pass, beside its nodes.
    """
    latency, acceptance, throughput = LatencyModel(maximum=64), AcceptanceModel(), Throughput()
    history, random, truth = PausingHistory(), np.random.default_rng(1), curve(0.02)
    tokens, seconds, levels = 0, 0.0, list[int]()
    for _ in range(requests):
        sizing, unread = AdaptiveSizing(latency, acceptance, throughput, None, history), SizedText(forecast, 32)
        state = sizing.open(unread)
        for _ in range(rounds):
            [nodes] = sizing.nodes([state])
            depth = min(nodes, 1)
            while 0 < depth < min(nodes, 7) and rate**depth * rate > state.level_price:
                depth += 1
            read = unread.take() if depth else 0
            [tree] = sizing.trim([state], [chain(*rate ** np.arange(1, depth + 1)) if depth else DraftTree.empty()])
            right = int(np.argmin(np.append(random.random(len(tree)) < rate, False)))
            target = float(truth.of(np.array([len(tree)]))[0]) + bool(depth) * base
            drafting = bool(depth) * (first + reading * read / 32) + further * max(0, depth - 1)
            unread.tokens = 0 if depth else unread.tokens + 1
            observe(sizing, [state], [tree], [right], target=target, draft=drafting)
            tokens, seconds = tokens + right + 1, seconds + target + drafting
            levels += [depth] if depth else []
        state.close()
    return tokens / seconds, float(np.mean(levels[len(levels) // 2 :]))


def test_drafting_that_does_not_pay_costs_next_to_nothing() -> None:
    """Guards "never slower": levels that take nearly a pass each and are seldom right, over short requests."""
    assert run(first=0.9, further=0.9, rate=0.4, requests=40)[0] > 0.97


def test_what_a_head_reads_counts_as_its_cost() -> None:
    """Guards "never slower": each text's first draft reads the prompt, and each pause leaves text to be read."""
    assert run(first=0.4, further=0.3, rate=0.5, requests=80, reading=2.0, base=0.25)[0] > 0.98
    assert run(first=0.2, further=0.1, rate=0.85, requests=20, reading=2.0, base=0.25)[0] > 2.0


def test_long_prompts_do_not_end_a_head_that_gains() -> None:
    """Guards heads that repay in a text what reading took: debt is no reason for a pause where drafts gain."""
    assert run(first=0.2, further=0.1, rate=0.85, requests=20, reading=10.0)[0] > 2.0


def test_answers_that_do_not_repay_the_prompt_are_decoded_plainly() -> None:
    """Guards "never slower": a head that gains much, but must read as long as twenty passes for a few tokens."""
    assert run(first=0.2, further=0.1, rate=0.85, requests=200, rounds=12, reading=20.0)[0] > 0.97
    assert run(first=0.9, further=0.9, rate=0.4, requests=200, rounds=12, reading=20.0)[0] > 0.97


def test_a_text_that_waits_keeps_what_it_is_to_read() -> None:
    """Guards heads that read the target's states, which are dropped in long pauses: waiting is none."""
    sizing, unread = adaptive(curve(0.02)), SizedText(forecast, 400)
    for _ in range(6):
        state = sizing.open(unread)
        for _ in range(6):
            read = unread.take() if sizing.nodes([state])[0] else 0
            draft = DraftTree.empty() if state.rest else chain(0.5)
            [draft] = sizing.trim([state], [draft])
            observe(sizing, [state], [draft], [len(draft)], target=1.0, draft=0.05 + 0.05 * read)
            assert state.rest <= 1
        state.close()
        unread.tokens = 400
    assert state.wait > 0


def test_reading_is_charged_to_texts_that_join_a_batch() -> None:
    """Guards batches: a text whose drafter reads its prompt while others draft owes what that took, the others not."""
    sizing = AdaptiveSizing(LatencyModel(maximum=64, known=curve(0.02)), AcceptanceModel(), Throughput())
    states = [sizing.open() for _ in range(2)]
    for _ in range(20):
        asked = [min(1, nodes) for nodes in sizing.nodes(states)]
        drafts = sizing.trim(states, [chain(0.9) if each else DraftTree.empty() for each in asked])
        observe(sizing, states, drafts, asked, target=1.02 + 0.02 * sum(asked), draft=0.02)
    states.append(sizing.open(unread := SizedText(tokens=400)))
    before = [state.pausing.balance for state in states]
    sizing.nodes(states)
    unread.take()
    observe(sizing, states, sizing.trim(states, [chain(0.9)] * 3), [1, 1, 1], target=1.1, draft=2.03)
    after = [state.pausing.balance for state in states]
    assert after[2] < before[2] - 1
    assert after[0] >= before[0]
    assert after[1] >= before[1]


def test_a_stall_is_not_charged_to_a_memory_that_joins_a_batch() -> None:
    """Guards memories, which read nothing: a round that took long is no reason for a pause of the text that joined."""
    sizing = AdaptiveSizing(LatencyModel(maximum=64, known=curve(0.02)), AcceptanceModel(), Throughput())
    states = [sizing.open(SizedText()) for _ in range(15)]
    for _ in range(20):
        sizing.nodes(states)
        observe(sizing, states, sizing.trim(states, [chain(0.9)] * 15), [1] * 15, target=1.6, draft=0.02)
    states.append(sizing.open(SizedText()))
    balance = states[-1].pausing.balance
    sizing.nodes(states)
    observe(sizing, states, sizing.trim(states, [chain(0.9)] * 16), [1] * 16, target=1.62, draft=0.5)
    assert states[-1].pausing.balance > balance - 0.3


def test_lucky_drafts_do_not_shorten_the_pauses_of_a_head_that_loses() -> None:
    """Guards sampled heads: half of the drafts gain, but what all of them lose stays a small share."""
    assert run(first=0.4, further=0.3, rate=0.55, requests=80, reading=2.0, base=0.25)[0] > 0.98


def test_the_noise_of_passes_is_not_charged_to_empty_drafts() -> None:
    """Guards memories without a match, which ask in every round at no cost: passes that stall are none of theirs."""
    sizing, random, asked = adaptive(curve(0.05)), np.random.default_rng(0), 0
    state = sizing.open()
    for _ in range(1000):
        asked += bool(sizing.nodes([state])[0])
        seconds = np.exp(0.08 * random.normal()) * (1.5 if random.random() < 0.02 else 1.0)
        observe(sizing, [state], sizing.trim([state], [DraftTree.empty()]), [0], target=seconds, draft=0.005)
    assert asked > 800


def test_the_noise_of_a_batch_is_not_charged_to_its_few_drafts() -> None:
    """Guards batches in which one text in eight has a draft, which is right: it goes on in every round."""
    sizing = AdaptiveSizing(LatencyModel(maximum=64, known=curve(0.02)), AcceptanceModel(), Throughput())
    states, random, asked = [sizing.open() for _ in range(8)], np.random.default_rng(0), 0
    for _ in range(400):
        nodes = sizing.nodes(states)
        asked += nodes[0] > 0
        drafts = sizing.trim(states, [chain(0.9, 0.8) if nodes[0] else DraftTree.empty(), *[DraftTree.empty()] * 7])
        seconds = (1.14 + 0.02 * len(drafts[0])) * np.exp(0.08 * random.normal())
        right = int(np.argmin(np.append(random.random(len(drafts[0])) < 0.6, False)))
        observe(sizing, states, drafts, [right, *[0] * 7], target=seconds, draft=0.01)
    assert asked > 380


def test_levels_that_take_no_time_are_found() -> None:
    """Guards heads that draft a block in one pass: one level does not pay, seven of them do."""
    speed, levels = run(first=0.9, further=0.01, rate=0.85, requests=40)
    assert speed > 1.5
    assert levels > 5


def test_levels_that_take_time_are_few() -> None:
    """Guards heads that take a pass for each level: none is grown that gains less than its time."""
    speed, levels = run(first=0.3, further=0.3, rate=0.7, requests=40)
    assert speed > 1.2
    assert levels < 4
