"""Drafts of a head keep the target's distribution: exact laws on three tokens, and chi-square through the API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import laws
from heads import random_head
from models import tiny_model
from speculant import Speculator
from speculant.core.drafter import EMPTY_PATH, Budget, Start, Verified
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree, Proposal
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.heads.head import Head, HeadState, TargetParts
from speculant.engines.hf.target_parts import HFTargetParts
from speculant.verifiers.speculative_sampling import SpeculativeSampling


class LawHead(Head):
    """Its logits after a path below the root are those of a random law of three tokens."""

    taps = (0,)
    depth = None
    ids = None

    def __init__(self, law: laws.Model) -> None:
        self.law = law

    def open(self, first: int, target: TargetParts) -> HeadState:
        return LawState(self.law)


class LawState(HeadState):
    """The paths of a draft."""

    def __init__(self, law: laws.Model) -> None:
        self.law, self.paths, self.length_ = law, list[laws.Text](), 0

    @property
    def length(self) -> int:
        return self.length_

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        self.length_ += len(hidden)

    def start(self) -> Tensor:
        return torch.tensor(self.law(())).log()[None]

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        added = [(*(self.paths[row] if row >= 0 else ()), token) for token, row in zip(tokens, above, strict=True)]
        self.paths += added
        return torch.stack([torch.tensor(self.law(path)).log() for path in added])

    def drop(self) -> None:
        self.paths = []

    def crop(self, length: int) -> None:
        self.drop()


def drafts(q: laws.Model, tree: str, nodes: int, rounds: int) -> Counter[tuple[int, ...]]:
    """Return how often each draft was made, over seeds; checks q of each."""
    target = HFTargetParts(tiny_model("llama", vocab_size=laws.VOCABULARY))
    head = LoadedHead(LawHead(q), target, "law", "eagle2")
    drafter = HeadDrafter(head, settings=HeadSettings(tree=tree, depth=3, top_k=3), sampled=True)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(rounds):
        start = Start(
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
                np.testing.assert_allclose(np.asarray(draft.proposal.q)[node + 1], q(path), atol=1e-5)
    return counts


def test_a_drawn_chain_is_drawn_from_the_q_it_reports() -> None:
    """Guards exactness at its root: tokens come from q as reported, and such chains keep p by enumeration."""
    p, q, rounds = laws.model(1), laws.model(2), 1500
    counts = drafts(q, "chain", 3, rounds)
    expected = laws.own_law(q, 3)
    likely = {text: rounds * chance for text, chance in expected.items() if rounds * chance >= 5}
    chi = sum((counts[text] - mean) ** 2 / mean for text, mean in likely.items())
    assert chi < len(likely) + 4 * np.sqrt(2 * len(likely))
    texts, _ = laws.law_of_rule(SpeculativeSampling().rule, p, q, [-1, 0, 1], "iid")
    assert texts == pytest.approx(laws.own_law(p, 4), abs=1e-9)


def test_a_dynamic_tree_is_chosen_and_keeps_the_law() -> None:
    """Guards trees made by scores: they are deterministic, so one-hot; the law of the text is p, by enumeration."""
    p, q = laws.model(1), laws.model(2)
    counts = drafts(q, "dynamic", 6, 5)
    assert len(counts) == 1
    target = HFTargetParts(tiny_model("llama", vocab_size=laws.VOCABULARY))
    drafter = HeadDrafter(LoadedHead(LawHead(q), target, "law", "eagle2"), settings=HeadSettings(depth=2, top_k=2))
    session = drafter.open(Start(prompt=np.array([1, 2], np.int32), sampling=Sampling(temperature=1.0)))
    hidden = torch.zeros(2, 1, 32)
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=np.array([1], np.int32), hidden=hidden))
    draft = session.propose(Budget(nodes=6, depth=2))
    assert len(draft) == 6
    texts, accepted = laws.law_of_drafts(SpeculativeSampling().rule, p, [(draft, 1.0)])
    assert accepted > 0.5
    assert texts == pytest.approx(laws.own_law(p, int(draft.depths().max()) + 1), abs=1e-9)


def test_sampled_text_of_a_drawn_chain() -> None:
    """Guards the whole way: the second token, which was drafted, has the target's distribution, by chi-square."""
    model = tiny_model("llama", vocab_size=16)
    model.generation_config.eos_token_id = None
    options: dict[str, Any] = {"temperature": 0.7, "top_k": 4}
    speculator = Speculator.from_transformers(
        model, method="eagle", head=random_head(model), verifier="speculative-sampling", nodes=2
    )
    prompt, rounds = [5, 9, 14, 3, 8], 300
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(rounds):
        counts[tuple(speculator.generate(prompt, max_new_tokens=3, seed=seed, **options).ids[:2])] += 1

    def after(ids: list[int]) -> dict[int, float]:
        with torch.no_grad():
            scores = model(torch.tensor([ids])).logits[0, -1].double() / options["temperature"]
        best = scores.topk(options["top_k"])
        return dict(zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True))

    expected = {(a, b): x * y for a, x in after(prompt).items() for b, y in after([*prompt, a]).items()}
    assert set(counts) <= set(expected)
    likely = {text: rounds * chance for text, chance in expected.items() if rounds * chance >= 5}
    chi = sum((counts[text] - mean) ** 2 / mean for text, mean in likely.items())
    assert chi < len(likely) + 4 * np.sqrt(2 * len(likely))
