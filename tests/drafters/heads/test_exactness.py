"""Drafts of a head keep the target's distribution: by enumeration over three tokens, and chi-square through the API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache as cache_calls
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import distributions
from heads import NAMES, PAIRS, SINGLE, UNITED, begun, random_head
from models import endless, tiny_model
from outcomes import Outcomes
from pairwise import every_other, in_turn
from speculant import Speculator
from speculant.core.drafter import EMPTY_PATH, Budget, Session, SessionRequest, Verified
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree, Proposal
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.heads.head import Head, HeadState, TargetParts
from speculant.drafters.models.warping import warp_logits
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.registry import BuildContext, build_drafter
from speculant.verifiers.block import BlockVerification
from speculant.verifiers.speculative_sampling import SpeculativeSampling
from speculant.verifiers.traversal import TraversalVerification

SAMPLINGS = (Sampling(temperature=1.2), Sampling(temperature=0.8, top_k=2))


class DistributionHead(Head):
    """Its logits after a path below the root are those of a random distribution of three tokens."""

    taps = (0,)
    depth = None
    ids = None

    def __init__(self, distribution: distributions.Model) -> None:
        self.distribution = distribution

    def open(self, first: int, target: TargetParts) -> HeadState:
        return DistributionState(self.distribution)


class DistributionState(HeadState):
    """The paths of a draft."""

    def __init__(self, distribution: distributions.Model) -> None:
        self.distribution, self.paths, self.length_ = distribution, list[distributions.Text](), 0

    @property
    def length(self) -> int:
        return self.length_

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        self.length_ += len(hidden)

    def start(self) -> Tensor:
        return torch.tensor(self.distribution(())).log()[None]

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        added = [(*(self.paths[row] if row >= 0 else ()), token) for token, row in zip(tokens, above, strict=True)]
        self.paths += added
        return torch.stack([torch.tensor(self.distribution(path)).log() for path in added])

    def drop(self) -> None:
        self.paths = []

    def crop(self, length: int) -> None:
        self.drop()


def drafts(q: distributions.Model, tree: str, nodes: int, rounds: int) -> Counter[tuple[int, ...]]:
    """Return how often each draft was made, over seeds; checks q of each."""
    target = HFTargetParts(tiny_model("llama", vocab_size=distributions.VOCABULARY))
    head = LoadedHead(DistributionHead(q), target, "distribution", "eagle2")
    drafter = HeadDrafter(head, settings=HeadSettings(tree=tree, depth=3, top_k=3), sampled=True)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(rounds):
        start = SessionRequest(
            prompt=np.array([1, 2], np.int32), sampling=Sampling(temperature=1.0), seed=np.random.SeedSequence(seed)
        )
        session = drafter.open(start)
        hidden = torch.zeros(2, 1, 32)
        session.observe(
            Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=np.array([1], np.int32), hidden=hidden)
        )
        draft = session.propose(Budget(nodes=nodes, depth=3))
        counts[tuple(draft.tokens.tolist())] += 1
        assert (draft.proposal is None) == (tree == "dynamic")
        if isinstance(draft.proposal, Proposal):
            for node in range(-1, len(draft) - 1):
                path = tuple(draft.tokens[: node + 1].tolist())
                assert np.abs(np.asarray(draft.proposal.q)[node + 1] - q(path)).max() < 1e-5
    return counts


def test_a_drawn_chain_is_drawn_from_the_q_it_reports() -> None:
    """Guards exactness at its root: tokens come from q as reported, and such chains keep p by enumeration."""
    p, q, rounds = distributions.model(1), distributions.model(2), 1500
    counts = drafts(q, "chain", 3, rounds)
    expected = distributions.own_distribution(q, 3)
    likely = {text: rounds * chance for text, chance in expected.items() if rounds * chance >= 5}
    chi = sum((counts[text] - mean) ** 2 / mean for text, mean in likely.items())
    assert chi < len(likely) + 4 * np.sqrt(2 * len(likely))
    texts, _ = distributions.distribution_of_rule(SpeculativeSampling().rule, p, q, [-1, 0, 1], "iid")
    assert texts == pytest.approx(distributions.own_distribution(p, 4), abs=1e-9)


def test_a_dynamic_tree_is_chosen_and_keeps_the_law() -> None:
    """Guards trees made by scores, which are deterministic, so one-hot: texts are distributed as p, by enumeration."""
    p, q = distributions.model(1), distributions.model(2)
    counts = drafts(q, "dynamic", 6, 5)
    assert len(counts) == 1
    target = HFTargetParts(tiny_model("llama", vocab_size=distributions.VOCABULARY))
    drafter = HeadDrafter(
        LoadedHead(DistributionHead(q), target, "distribution", "eagle2"), settings=HeadSettings(depth=2, top_k=2)
    )
    session = drafter.open(SessionRequest(prompt=np.array([1, 2], np.int32), sampling=Sampling(temperature=1.0)))
    hidden = torch.zeros(2, 1, 32)
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=np.array([1], np.int32), hidden=hidden))
    draft = session.propose(Budget(nodes=6, depth=2))
    assert len(draft) == 6
    texts, accepted = distributions.distribution_of_drafts(SpeculativeSampling().rule, p, [(draft, 1.0)])
    assert accepted > 0.5
    assert texts == pytest.approx(distributions.own_distribution(p, int(draft.depths().max()) + 1), abs=1e-9)


def every_draft(session: Session, budget: Budget) -> list[tuple[DraftTree, float]]:
    """Return every draft that a session may propose now, with its probability: each outcome of each draw in turn."""
    found, outcomes = list[tuple[DraftTree, float]](), Outcomes()
    with pytest.MonkeyPatch.context() as patch:
        outcomes.patch(patch)
        for outcome in outcomes:
            draft = session.propose(budget)
            found.append((draft, outcome.probability))
    assert sum(chance for _, chance in found) == pytest.approx(1)
    return found


def after_a_round(
    method: str, name: str, sampling: Sampling, settings: dict[str, Any]
) -> tuple[Session, distributions.Model]:
    """Return a session after accepted and rejected tokens, and the target's own distribution after its text."""
    model = tiny_model("llama", vocab_size=distributions.VOCABULARY, num_hidden_layers=2)
    head = random_head(model, name)
    drafter = build_drafter(
        method, BuildContext(vocabulary=distributions.VOCABULARY, head=head, settings=settings, sampled=True)
    )
    text = [1, 2, 0, 2, 1, 1, 0]
    engine, start, prompt = begun(drafter.needs, model, text, sampling=sampling, seed=np.random.SeedSequence(1))
    cache: Any = start.target
    session = drafter.open(start)
    session.observe(prompt)
    draft = session.propose(Budget(nodes=3, depth=3))
    assert len(draft)
    [result] = engine.forward([(cache, text[-1], draft)], drafter.needs)
    cache.keep([0, 1])
    tokens = np.array([draft.tokens[0], 1], np.int32)
    session.observe(
        Verified(
            tree=draft,
            path=np.array([0], np.int32),
            tokens=tokens,
            top_ids=result.top_ids,
            top_logits=result.top_logits,
            hidden=result.hidden,
        )
    )
    text += tokens.tolist()

    @cache_calls
    def distribution(more: distributions.Text) -> distributions.Float64:
        with torch.no_grad():
            p = warp_logits(model(torch.tensor([[*text, *more]])).logits[0, -1:], sampling)[0].double().numpy()
        return np.asarray(p / p.sum())

    return session, distribution


def check_distribution(
    listed: list[tuple[DraftTree, float]], p: distributions.Model, rules: Sequence[distributions.Rule]
) -> None:
    """Check that texts have the target's distribution under each rule, over all drafts and all outcomes."""
    length = max(int(draft.depths().max()) for draft, _ in listed) + 1
    for rule in rules:
        texts, _ = distributions.distribution_of_drafts(rule, p, listed)
        assert texts == pytest.approx(distributions.own_distribution(p, length), abs=1e-6)


@pytest.mark.parametrize(("name", "sampling"), in_turn(NAMES, SAMPLINGS))
def test_drawn_chains_keep_the_law(name: str, sampling: Sampling) -> None:
    """Guards each head's q: every chain that can be drawn, as reported, under every rule that takes it."""
    method = next(method for method, other in PAIRS if other == name)
    settings: dict[str, Any] = {"tree": "chain"} | ({"confidence": 0.02} if name == "dspark" else {})
    session, p = after_a_round(method, name, sampling, settings)
    listed = every_draft(session, Budget(nodes=3, depth=3))
    assert all(draft.proposal is not None for draft, _ in listed)
    assert len(listed) > 1
    if name == "dspark":
        assert len({len(draft) for draft, _ in listed}) > 1  # chains that end by confidence are among them
    check_distribution(listed, p, [SpeculativeSampling().rule, BlockVerification().rule, TraversalVerification().rule])


@pytest.mark.parametrize(
    ("method", "name"),
    every_other([*PAIRS, ("eagle", "static"), ("medusa", "static"), ("hydra", "static")], first=True),
)
def test_chosen_trees_keep_the_law(method: str, name: str) -> None:
    """Guards trees, which are chosen by q alone, unions with a memory included: no token of them counts as drawn."""
    settings: dict[str, Any] = (
        {"tree": "static"} if name == "static" else {} if method in UNITED else {"tree": "dynamic"}
    )
    if (method, name) == ("glide", "glide"):
        settings = {}  # widened chains
    name = method if name == "static" else name
    session, p = after_a_round(method, name, SAMPLINGS[0], settings)
    [(draft, _)] = listed = every_draft(session, Budget(nodes=6, depth=3))
    assert draft.proposal is None
    assert len(draft) > len(set(draft.parents.tolist()))
    check_distribution(listed, p, [SpeculativeSampling().rule, TraversalVerification().rule])


@pytest.mark.parametrize(
    ("method", "name"),
    [
        pytest.param(*each, marks=() if each[0] == each[1] in ("eagle", "dflash") else pytest.mark.slow)
        for each in SINGLE
    ],
)
def test_sampled_text_of_drawn_chains(method: str, name: str, record_property: Any) -> None:
    """Guards the whole way, in batches: the tokens after the prompt have the target's distribution, by chi-square."""
    draws = 200
    model = endless("llama", vocab_size=4, num_hidden_layers=1)
    options: dict[str, Any] = {"temperature": 1.5, "top_k": 3}
    speculator = Speculator.from_transformers(
        model, method=method, head=random_head(model, name), verifier="speculative-sampling", nodes=100, fast=False
    )
    prompt = [1, 3, 0, 3, 2]
    results = speculator.generate_batch([prompt] * draws, size=50, max_new_tokens=4, seed=7, **options)
    counts = Counter(tuple(each.ids[:3]) for each in results)
    assert sum(each.stats.accepted for each in results) > draws / 10

    @cache_calls
    def after(text: tuple[int, ...]) -> dict[int, float]:
        with torch.no_grad():
            scores = model(torch.tensor([[*prompt, *text]])).logits[0, -1].double() / options["temperature"]
        best = scores.topk(options["top_k"])
        return dict(zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True))

    expected = {
        (a, b, c): draws * x * y * z
        for a, x in after(()).items()
        for b, y in after((a,)).items()
        for c, z in after((a, b)).items()
    }
    assert set(counts) <= set(expected)
    likely = {text: mean for text, mean in expected.items() if mean >= 5}
    chi = sum((counts[text] - mean) ** 2 / mean for text, mean in likely.items())
    degrees, others = len(likely), draws - sum(likely.values())
    if others >= 5:
        chi, degrees = chi + (draws - sum(counts[text] for text in likely) - others) ** 2 / others, degrees + 1
    p = float(torch.special.gammaincc(torch.tensor((degrees - 1) / 2), torch.tensor(chi / 2)))
    record_property("p", p)
    assert p > 1e-4
