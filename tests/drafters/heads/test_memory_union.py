"""A memory and a head in one tree: the best nodes of both are in it, and the text is the target's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from heads import oracle, random_head
from models import tiny_model
from passes import plain_text
from speculant import Speculator
from speculant.core.drafter import EMPTY_PATH, Budget, SessionRequest, Verified
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.heads.drafter import HeadDrafter
from speculant.drafters.heads.head_gain import HeadGain
from speculant.drafters.heads.memory_union import MixHeadDrafter, SuffixHeadDrafter, UnionHeadDrafter, UnionHeadSettings
from speculant.drafters.heads.united_session import Reach
from speculant.drafters.mix.drafter import MixDrafter
from trees import paths_of

TEXT = [5, 9, 14, 3, 8, 20, 33] * 5
KINDS = (MixHeadDrafter, SuffixHeadDrafter)


def first_round(root: int) -> Verified:
    """Return what follows the prompt's pass."""
    hidden = torch.randn(len(TEXT), 1, 32, generator=torch.Generator().manual_seed(1))
    top = np.tile(np.arange(8, dtype=np.int32), (1, 1))
    return Verified(
        tree=DraftTree.empty(),
        path=EMPTY_PATH,
        tokens=np.array([root], np.int32),
        top_ids=top,
        top_logits=-np.arange(8, dtype=np.float32)[None],
        hidden=hidden,
    )


def test_the_best_nodes_of_both_are_in_the_draft() -> None:
    """Guards the union: the first path of `mix`, and the head's own best tokens beside it."""
    head, start = random_head(tiny_model("llama")), SessionRequest(prompt=np.array(TEXT, np.int32))
    with torch.no_grad():
        for weight in head.head.parameters():
            weight.mul_(0.1)  # a head that is sure of its tokens would leave no room for copies that it has no part in
    drafters = [
        MixDrafter(vocabulary=61),
        HeadDrafter(head),
        MixHeadDrafter(head, vocabulary=61, settings=UnionHeadSettings(top_k=4)),
    ]
    drafts = []
    for drafter in drafters:
        session = drafter.open(start)
        session.observe(first_round(5))
        drafts.append(session.propose(Budget(nodes=16, depth=6)))
    mix, alone, union = (set(paths_of(tree)) for tree in drafts)
    assert (9, 14, 3) in mix & union
    best = {path for path in list(paths_of(drafts[1]))[:3] if len(path) == 1}
    assert best <= union
    assert alone - mix
    assert len(union) == 16


def test_copies_go_deeper_than_the_head() -> None:
    """Guards heads of few tokens: what the memory knows beyond them stays in the draft."""
    model = tiny_model("llama")
    drafter = MixHeadDrafter(oracle(model, begin=TEXT[0], depth=2), vocabulary=61)
    session = drafter.open(SessionRequest(prompt=np.array(TEXT, np.int32)))
    session.observe(first_round(5))
    for trees in (True, False):
        draft = session.propose(Budget(nodes=16, depth=8, trees=trees))
        assert len(draft) <= 16
        if trees:
            assert draft.depths().max() > 2
        assert trees or draft.parents.tolist() == list(range(-1, len(draft) - 1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_is_saved(kind: type[UnionHeadDrafter], tmp_path: Path) -> None:
    """Guards memory files: they are those of the memory's own method."""
    model = tiny_model("llama")
    name = "mix-head" if kind is MixHeadDrafter else "suffix-head"
    head = random_head(model)
    speculator = Speculator.from_transformers(model, method=name, head=head, nodes=12)
    assert isinstance(speculator.drafter, kind)
    first = speculator.generate(TEXT, max_new_tokens=30, temperature=0)
    speculator.save(tmp_path / "memory")
    again = Speculator.from_transformers(model, method=name, head=head, nodes=12, memory=tmp_path / "memory")
    Speculator.from_transformers(model, method=name.removesuffix("-head"), memory=tmp_path / "memory")
    second = again.generate(TEXT, max_new_tokens=30, temperature=0)
    assert second.ids == first.ids == plain_text(model, torch.tensor([TEXT]), 30)[: len(first.ids)]
    assert second.stats.mat >= first.stats.mat


def test_the_union_is_ahead_of_a_useless_part() -> None:
    """Guards the mixture: with a good head the union accepts about what the head does, whatever `mix` proposes."""
    model = tiny_model("llama")
    model.generation_config.eos_token_id = None
    prompt = [5, 9, 14, 3, 8]
    mats = {
        method: Speculator.from_transformers(model, method=method, head=head, nodes=16)
        .generate(prompt, max_new_tokens=40, temperature=0)
        .stats.mat
        for method, head in (("mix", None), ("mix-head", oracle(model, begin=5)))
    }
    assert mats["mix-head"] > 2 > 0.5 * mats["mix"]


def test_the_memory_proposes_more_where_it_reaches_far() -> None:
    """Guards texts that repeat themselves: a memory that is right nearly as far as the head fills the draft."""
    reach = Reach()
    assert reach.count_proposed(16, 64) == 16
    for _ in range(200):
        reach.observe(head=2, memory=3)
    assert (reach.count_proposed(16, 64), reach.count_proposed(16, 8)) == (64, 16)
    for _ in range(200):
        reach.observe(head=4, memory=1)
    assert reach.count_proposed(16, 64) == 16


def test_the_head_rests_where_its_time_is_worth_more() -> None:
    """Guards automatic sizes: a head that gains nothing beside the memory is asked rarely, one that does always."""
    gain = HeadGain()
    asked = 0
    for _ in range(500):
        if gain.pays(3.5, start_price=0.3, level_price=0.2):
            asked += 1
            gain.observe(3.5, 0, 4)
        assert gain.pays(0.1, start_price=0.3, level_price=0.2)
        gain.observe(0.1, 2, 4)
    assert 2 <= asked < 80


def test_a_head_that_pays_in_the_mean_is_asked() -> None:
    """Guards decisions by few rounds, among which what a head gains differs by more than it costs."""
    shares = list[float]()
    for seed in range(10):
        gain, random, asked = HeadGain(), np.random.default_rng(seed), 0
        for _ in range(400):
            expected = float(random.random() * 4)
            if gain.pays(expected, start_price=0.8, level_price=0.12):
                asked += 1
                gain.observe(expected, int(random.choice([0, 0, 1, 3, 8])), 7)
        shares.append(asked / 400)
    assert np.mean(shares) > 0.85


def test_a_head_that_is_never_right_is_asked_less_and_less() -> None:
    """Guards unions with a useless head: what one round tells counts for all, and trials that lose become rarer."""
    gain, asked = HeadGain(), list[int]()
    for at in range(2000):
        expected = (0.1, 0.3, 0.7, 1.2, 1.7, 2.5, 3.5, 5.0, 7.0)[at % 9]
        if gain.pays(expected, start_price=0.5, level_price=0.2):
            asked.append(at)
            gain.observe(expected, 0, 4)
    early, late = sum(at < 200 for at in asked), sum(at >= 1000 for at in asked)
    assert early < 20
    assert 1 <= late <= 4


def test_the_memory_drafts_alone_where_the_head_rests() -> None:
    """Guards a round without the head: the memory's own draft, which took no level, and nothing is learned of it."""
    drafter = MixHeadDrafter(random_head(tiny_model("llama")), vocabulary=61)
    session = drafter.open(SessionRequest(prompt=np.array(TEXT, np.int32)))
    session.observe(first_round(5))
    alone = session.propose(Budget(nodes=16, depth=6, level_price=50.0))
    assert alone.levels == 0
    assert (9, 14, 3) in paths_of(alone)
    assert (session.propose(Budget(nodes=16, depth=6, level_price=1e-9)).levels or 0) > 0
    [together, _] = drafter.propose([session, session], [Budget(nodes=16, depth=6, level_price=50.0)] * 2)
    assert paths_of(together) == paths_of(alone)


def test_settings_out_of_range() -> None:
    """Guards widths that no draft can have."""
    with pytest.raises(UsageError, match="wide must be from 1 to 64"):
        UnionHeadSettings(wide=0)
