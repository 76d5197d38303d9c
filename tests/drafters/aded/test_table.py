"""The adaptive table agrees with a naive one, stays within its bytes, and keeps what is in use."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant.drafters.aded.frozen import freeze
from speculant.drafters.aded.paper import AdedPaperSettings
from speculant.drafters.aded.rows import (
    LONGEST_ROW,
    MAX_VOCABULARY,
    NONE,
    TAIL,
    UNIT,
    WEIGHT_LIMIT,
    export,
    level_bytes,
)
from speculant.drafters.aded.table import LearningRule, TrigramTable
from tables import COUNTS, NaiveTable, contexts_of, ids, learn_target_rows, row_of, table

PAPER_RULE = AdedPaperSettings().rule()
RULES = {
    "counts": COUNTS,
    "paper": PAPER_RULE,
    "short rows": COUNTS._replace(longest=3, memory=200),
    "one successor": COUNTS._replace(longest=1),
    "low ceiling": LearningRule(gain=50, ceiling=120, memory=0, prior=UNIT, longest=5, bigrams=True),
    "no decay": COUNTS._replace(memory=0, bigrams=False),
}


def rows_agree(held: TrigramTable, naive: NaiveTable) -> None:
    """Check every row, its order included, and the count of successors."""
    for (a, b), row in naive.rows.items():
        assert row_of(held, a, b) == row
    assert contexts_of(held) == set(naive.rows)
    assert held.successors == sum(map(len, naive.rows.values()))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@given(text=st.lists(st.integers(0, 4), max_size=120), cut=st.integers(0, 120))
def test_learns_as_the_naive_table(rule: LearningRule, text: list[int], cut: int) -> None:
    """Each token is learned once under its two contexts, however the text is cut into pieces."""
    held, naive = table(rule), NaiveTable(rule)
    held.learn(ids(text[:cut]))
    held.learn(ids(text), min(cut, len(text)))
    naive.learn(text)
    rows_agree(held, naive)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_growth_loses_nothing(rule: LearningRule) -> None:
    """Thousands of rows of all lengths survive every growth of slots and pool."""
    random = np.random.default_rng(0)
    text = (random.zipf(1.3, 12_000) % 400).astype(np.int32)
    held, naive = table(rule), NaiveTable(rule)
    held.learn(text)
    naive.learn(text.tolist())
    assert len(held.old.slots) == 1
    rows_agree(held, naive)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=300),
    st.sampled_from([1, 2, 16, 255, LONGEST_ROW]),
    st.integers(64, 30_000),
)
def test_a_row_keeps_its_order_and_its_total(followers: list[int], longest: int, memory: int) -> None:
    """Successors stay sorted, and decay holds a row's total at its memory, give or take one observation."""
    rule = COUNTS._replace(longest=longest, memory=memory)
    held = table(rule)
    for token in followers:
        held.learn(ids([100, 101, token]), 2)
        row = row_of(held, 100, 101)
        weights = [weight for _, weight in row]
        assert weights == sorted(weights, reverse=True)
        assert min(weights) > 0
        assert sum(weights) <= memory + rule.gain + len(row)
        assert token in dict(row)


@pytest.mark.parametrize("rule", [COUNTS, COUNTS._replace(longest=3), PAPER_RULE], ids=["counts", "short", "paper"])
@pytest.mark.parametrize("k", [1, 8, 100])
def test_learns_the_targets_rows_as_the_naive_table(rule: LearningRule, k: int) -> None:
    """The target's best tokens are learned by their shares, the best one last; shares too small are nothing."""
    random = np.random.default_rng(k)
    held, naive = table(rule), NaiveTable(rule)
    for rows in (1, 30, 0, 60):
        contexts = random.integers(0, 12, (rows, 2)).astype(np.int32)
        best = np.array([random.permutation(150)[:k] for _ in range(rows)], np.int32).reshape(rows, k)
        shares = np.sort(random.random((rows, k), np.float32), axis=1)[:, ::-1].copy() ** 4
        learn_target_rows(held, contexts, best, shares)
        assert held.young.counts[TAIL] <= len(held.young.tokens)
        for (a, b), tokens, observations in zip(contexts.tolist(), best.tolist(), shares.tolist(), strict=True):
            for token, share in reversed(list(zip(tokens, observations, strict=True))):
                if share * rule.gain >= 1:
                    naive.observe(a, b, token, share)
                    if rule.bigrams:
                        naive.observe(NONE, b, token, share)
    rows_agree(held, naive)


def test_a_round_is_its_rows_and_its_tokens() -> None:
    """A round of a branching draft, also one that fills the level, learns each row after its own two tokens."""
    random = np.random.default_rng(3)
    whole, parts = table(), table()
    for _ in range(200):
        text, nodes = random.integers(0, 90, 4).astype(np.int32), random.integers(0, 90, 6).astype(np.int32)
        parents = np.array([-1, 0, -1, 2, 1, 1], np.int32)
        best = np.array([random.permutation(90)[:8] for _ in range(7)], np.int32)
        logits = np.sort(random.random((7, 8), np.float32), axis=1)[:, ::-1] * np.float32(5)
        whole.learn_round(text, nodes, parents, best, logits, 4.0)
        above = [text[1] if parent < 0 else nodes[parent] for parent in parents]
        shares = np.exp(logits - logits[:, :1])
        shares *= np.float32(4) / shares.sum(1, keepdims=True)
        learn_target_rows(parts, np.array([text[:2], *zip(above, nodes, strict=True)], np.int32), best, shares)
        parts.learn(text, 2)
    assert contexts_of(whole) == contexts_of(parts)
    for a, b in contexts_of(parts):
        own, expected = dict(row_of(whole, a, b)), dict(row_of(parts, a, b))
        assert own.keys() == expected.keys()
        assert all(abs(weight - expected[token]) <= 4 for token, weight in own.items())  # exp may round differently


@pytest.mark.parametrize("limit", [0, 200_000])
def test_the_targets_rows_stay_within_the_limit(limit: int) -> None:
    """However many tokens a row brings, learning ends and the bytes are bounded."""
    random = np.random.default_rng(2)
    held = table(limit=limit)
    for k in (1, 40, 300):
        for _ in range(60):
            contexts = random.integers(0, 500, (20, 2)).astype(np.int32)
            best = random.integers(0, 500, (20, k)).astype(np.int32)
            learn_target_rows(held, contexts, best, np.full((20, k), 0.5, np.float32))
            assert held.nbytes <= max(limit, 60_000)
            for level in (held.young, held.old):
                assert level.counts[TAIL] <= len(level.tokens)


def test_the_smallest_and_largest_ids() -> None:
    """Context (0, 0) is not taken for an empty slot, and the largest ids not for the mark of bi-grams."""
    maximum = MAX_VOCABULARY - 1
    held, naive = table(), NaiveTable(COUNTS)
    text = [0, 0, 0, maximum, maximum, maximum, 0, maximum]
    held.learn(ids(text))
    naive.learn(text)
    rows_agree(held, naive)


@pytest.mark.parametrize("text", [[], [3]])
def test_too_short_to_learn(text: list[int]) -> None:
    """Nothing is learned from a text without a pair of tokens."""
    held = table()
    held.learn(ids(text))
    assert held.successors == 0


@pytest.mark.parametrize(("rule", "limit"), [(COUNTS, 130_000), (COUNTS, 1 << 20), (PAPER_RULE, 1 << 20)])
def test_never_above_the_limit(rule: LearningRule, limit: int) -> None:
    """Over 200,000 random tokens the bytes never pass the limit, and what was learned last is known."""
    random = np.random.default_rng(4)
    held = table(rule, limit=limit)
    text = np.concatenate([random.integers(0, 3000, 100_000), random.zipf(1.2, 100_000) % 3000]).astype(np.int32)
    rotations, old = 0, held.old
    for at in range(0, len(text), 2000):
        held.learn(text[: at + 2000], at)
        assert held.nbytes <= limit
        rotations, old = rotations + (held.old is not old), held.old
    assert rotations > 3
    for a, b, c in zip(text[-100:], text[-99:], text[-98:], strict=False):
        assert int(c) in dict(row_of(held, int(a), int(b)))


@pytest.mark.parametrize("followers", [2, 3000])
def test_nothing_grows_beside_an_old_level(followers: int) -> None:
    """A copy would need room that there is not; a new level begins with all of it, and uses it."""
    random = np.random.default_rng(9)
    held = table(limit=400_000)
    text = random.integers(0, 3000, 60_000).astype(np.int32)
    text[1::2] = text[::2] % followers
    young, turned = held.young, 0
    for at in range(0, len(text), 50):
        held.learn(text[: at + 50], at)
        if held.young is not young:
            assert held.old is young or not turned
            turned += held.old is young
            young = held.young
        if turned:
            assert held.nbytes <= held.limit
        if turned > 1:
            assert held.nbytes >= 0.9 * held.limit
    assert turned > 2


def test_never_above_a_limit_that_growth_meets_exactly() -> None:
    """Where a level takes half of the limit to the byte, the small change of both levels is counted, too."""
    random = np.random.default_rng(5)
    text = random.integers(0, 3000, 20_000).astype(np.int32)
    free = table()
    sizes = set()
    for at in range(0, len(text), 50):
        free.learn(text[: at + 50], at)
        sizes.add(len(free.young.slots) * 12 + len(free.young.tokens) * 6)
    for half in [size for size in sorted(sizes) if 60_000 < size < 300_000]:
        for limit in (2 * half, 2 * half + 176):
            held = table(limit=limit)
            for at in range(0, len(text), 500):
                held.learn(text[: at + 500], at)
                assert held.nbytes <= limit


@pytest.mark.parametrize("limit", [0, 1000, 60_000])
def test_a_limit_too_small_for_anything(limit: int) -> None:
    """Learning ends, keeps the latest rows, and takes no more than the limit or the two smallest levels."""
    random = np.random.default_rng(6)
    text = random.integers(0, 3000, 20_000).astype(np.int32)
    held = table(limit=limit)
    held.learn(text)
    assert held.nbytes <= max(limit, 2 * 12 * 256 + 2 * 6 * 256 * 16 + 1000)
    assert int(text[-1]) in dict(row_of(held, int(text[-3]), int(text[-2])))


def test_what_is_used_stays_and_what_is_not_goes() -> None:
    """A phrase that returns survives any amount of noise; one that does not is forgotten after two generations."""
    random = np.random.default_rng(7)
    held = table(limit=200_000)
    used, unused = ids(range(5000, 5010)), ids(range(6000, 6010))
    for text in (used, unused, used):
        held.learn(text)
    for _ in range(100):
        held.learn(random.integers(0, 4000, 500).astype(np.int32))
        held.learn(used)
    for a, b in pairwise(range(5000, 5009)):
        assert row_of(held, a, b)[0][1] >= 5 * UNIT
        assert row_of(held, a + 1000, b + 1000) == []


def test_a_row_that_is_used_again_moves_up() -> None:
    """After the turn of a generation an old row is still known, and learning brings it up, weights and all."""
    held = table(limit=100_000)
    held.learn(ids([1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 4]))
    before = row_of(held, 1, 2)
    young = held.young
    fill = 10_000
    while held.old is not young:
        young = held.young
        held.learn(ids([fill, fill + 1, fill + 2]))
        fill += 3
    assert (1, 2) not in contexts_of(held)
    assert row_of(held, 1, 2) == before == [(3, 2 * UNIT), (4, UNIT)]
    held.learn(ids([1, 2, 4]), 2)
    assert (1, 2) in contexts_of(held)
    assert row_of(held, 1, 2) == [(4, 2 * UNIT), (3, 2 * UNIT)]
    a, b, _, _ = export(held.old, held.young)
    assert (1, 2) not in set(zip(a.tolist(), b.tolist(), strict=True))


def test_a_row_of_the_base_moves_up() -> None:
    """What a corpus knows counts for at most the prior; learning starts from there."""
    base = freeze(*(np.array(column) for column in ([1, 1], [2, 2], [3, 4], [6000, 2000])), vocabulary=10)
    held = table(base=base)
    assert [token for token, _ in row_of(held, 1, 2)] == [3, 4]
    assert [weight for _, weight in row_of(held, 1, 2)] == pytest.approx([768, 256], rel=0.03)
    held.learn(ids([1, 2, 4]), 2)
    (heavy, _), (light, weight) = row_of(held, 1, 2)
    assert (heavy, light) == (3, 4)
    assert weight == pytest.approx(256 * 512 / (1024 + UNIT) + UNIT, rel=0.03)
    assert held.nbytes == base.nbytes + level_bytes(held.young) + level_bytes(held.old)


@pytest.mark.parametrize(
    "change", [{"longest": 0}, {"longest": LONGEST_ROW + 1}, {"ceiling": 0}, {"ceiling": WEIGHT_LIMIT + 1}]
)
def test_rules_that_do_not_fit_are_refused(change: dict[str, int]) -> None:
    """Rows and weights beyond the table's fields would be written elsewhere."""
    with pytest.raises(ValueError, match="1 to 256 successors"):
        table(COUNTS._replace(**change))
    assert NONE == MAX_VOCABULARY
