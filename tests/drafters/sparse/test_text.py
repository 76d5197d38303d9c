"""Texts drafted on a part of the cache: they are the target's, and with all rows every draft is accepted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from models import tiny_model
from pairwise import in_turn
from speculant import Speculator
from speculant.core.drafter import Budget, SessionRequest, Verified
from speculant.core.engine import TargetCache
from speculant.core.tree import DraftTree
from speculant.drafters.sparse.drafter import SparseCacheDrafter, SparseCacheSettings
from speculant.engines.hf.engine import HFEngine

PROMPTS = [np.random.default_rng(seed).integers(3, 61, 45).tolist() for seed in (1, 2)]
ALL = {"budget": 256, "recent": 240, "min_context": 0, "refresh": 9}
FEW = {"budget": 26, "sinks": 2, "recent": 8, "page": 4, "min_context": 0, "refresh": 9}
EMPTY = np.empty(0, np.int32)


def endless_model(name: str, attention: str = "sdpa", **changes: Any) -> Any:
    """Return a tiny model whose texts do not end."""
    model = tiny_model(name, attention, **changes)
    model.generation_config.eos_token_id = None
    return model


def plain_texts(model: Any, **options: Any) -> list[list[int]]:
    """Return plain decoding's texts behind the prompts."""
    speculator = Speculator.from_transformers(model, method="none", fast=False)
    return [speculator.generate(each, max_new_tokens=14, **options).ids for each in PROMPTS]


WAYS = [("sdpa", True), ("eager", False), ("eager", True), ("sdpa", False)]


@pytest.mark.parametrize(("name", "attention", "fast"), in_turn(["llama", "qwen2", "gemma3", "mistral"], WAYS))
def test_greedy_tokens_are_the_targets(name: str, attention: str, fast: bool) -> None:
    """Guards texts alone and in a batch, and that with all rows nothing is ever rejected."""
    model = endless_model(name, attention)
    plain = plain_texts(model, temperature=0)
    for settings in (ALL, FEW):
        speculator = Speculator.from_transformers(model, method="sparse-cache", nodes=5, settings=settings, fast=fast)
        results = [speculator.generate(each, max_new_tokens=14, temperature=0) for each in PROMPTS]
        results += speculator.generate_batch(PROMPTS, size=2, max_new_tokens=14, temperature=0)
        assert [each.ids for each in results] == plain * 2
        drafted, accepted = (sum(getattr(each.stats, name) for each in results) for name in ("drafted", "accepted"))
        assert drafted >= accepted > 12
        assert settings is FEW or drafted == accepted


def test_sampled_drafts_with_all_rows_are_accepted() -> None:
    """Guards sampling: q is the target's p where no row is missing, and a seed gives a text again."""
    model = endless_model("llama")
    for settings, whole in ((ALL, True), (FEW, False)):
        speculator = Speculator.from_transformers(model, method="sparse-cache", nodes=5, settings=settings)
        options: dict[str, Any] = {"max_new_tokens": 24, "temperature": 1.2, "top_k": 20, "seed": 3}
        first = speculator.generate(PROMPTS[0], **options)
        assert speculator.generate(PROMPTS[0], **options).ids == first.ids
        assert 0 < first.stats.accepted <= first.stats.drafted
        assert whole == (first.stats.accepted == first.stats.drafted)


def test_chosen_tokens_follow_plain_sampling() -> None:
    """Guards a rule that takes greedy decoding alone: the tokens of plain decoding."""
    model = endless_model("llama")
    speculator = Speculator.from_transformers(model, method="sparse-cache", verifier="greedy", nodes=5, settings=FEW)
    assert speculator.generate(PROMPTS[0], max_new_tokens=14, temperature=0).ids == plain_texts(model, temperature=0)[0]


def test_the_distribution_is_the_targets() -> None:
    """Guards sampled texts on few rows: the second token's counts, chi-square."""
    model, draws, counts = endless_model("qwen2", num_hidden_layers=1), 250, Counter[int]()
    speculator = Speculator.from_transformers(model, method="sparse-cache", nodes=2, settings=FEW, fast=False)
    drafted = 0
    with torch.no_grad():
        first = int(model(torch.tensor([PROMPTS[0]])).logits[0, -1].argmax())
        logits = model(torch.tensor([[*PROMPTS[0], first]])).logits[0, -1]
    options: dict[str, Any] = {"temperature": 2.0, "top_k": 3, "seed": 0}
    for result in speculator.generate_batch([PROMPTS[0]] * draws, size=50, max_new_tokens=3, **options):
        counts[result.ids[1]] += result.ids[0] == first
        drafted += result.stats.drafted
    assert drafted >= draws
    best = (logits / 2.0).topk(3)
    total = sum(counts.values())
    expected = dict(zip(best.indices.tolist(), (total * best.values.double().softmax(-1)).tolist(), strict=True))
    assert {key for key, count in counts.items() if count} <= set(expected)
    chi = sum((counts[token] - mean) ** 2 / mean for token, mean in expected.items())
    assert chi < 2 + 4 * np.sqrt(4)  # four standard deviations


def test_a_next_turn_goes_on_from_a_cache() -> None:
    """Guards `cache=`: the text's cache is whole behind drafts, and drafts of the next turn choose from all of it."""
    model = endless_model("gemma3")
    speculator = Speculator.from_transformers(model, method="sparse-cache", nodes=5, settings=ALL)
    first = speculator.generate(PROMPTS[0], max_new_tokens=20, temperature=0)
    prompt = [*PROMPTS[0], *first.ids, 7, 9]
    again = speculator.generate(prompt, max_new_tokens=30, temperature=0, cache=first.cache)
    plain = Speculator.from_transformers(model, method="none", fast=False)
    assert again.ids == plain.generate(prompt, max_new_tokens=30, temperature=0).ids
    assert again.stats.accepted == again.stats.drafted > 15


def test_short_texts_are_decoded_without_drafts() -> None:
    """Guards `min_context`: nothing is drafted, nor rows chosen, before the text is that long."""
    model = endless_model("llama")
    settings = {**ALL, "min_context": 60}
    speculator = Speculator.from_transformers(model, method="sparse-cache", nodes=5, settings=settings)
    result = speculator.generate(PROMPTS[0], max_new_tokens=12, temperature=0)
    assert result.stats.drafted == 0
    assert speculator.generate(PROMPTS[0], max_new_tokens=40, temperature=0).stats.drafted > 10


class CountedCache:
    """Counts what a target's sparse caches are asked for."""

    def __init__(self, target: TargetCache) -> None:
        self._target, self.calls = target, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open_sparse(self, budget: Any) -> Any:
        sparse, calls = self._target.open_sparse(budget), self.calls

        class Counted:
            def __getattr__(self, name: str) -> Any:
                calls.append(name)
                return getattr(sparse, name)

        return Counted()


def test_rows_are_chosen_behind_the_prompt_and_after_so_many_tokens() -> None:
    """Guards the schedule, and that a draft asked for twice in a round is the same."""
    cache = HFEngine(endless_model("llama")).open(torch.tensor([PROMPTS[0]]))
    cache.prefill()
    counted, drafter = CountedCache(cache), SparseCacheDrafter(settings=SparseCacheSettings(**(FEW | {"refresh": 3})))  # type: ignore[arg-type]
    session = drafter.open(SessionRequest(prompt=np.array(PROMPTS[0], np.int32), target=counted))  # type: ignore[arg-type]
    counted.calls.clear()
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY, tokens=np.array([8], np.int32)))
    budget, seen = Budget(nodes=3, depth=3, trees=False), list[list[str]]()
    for _ in range(4):
        draft = session.propose(budget)
        assert session.propose(budget).tokens.tolist() == draft.tokens.tolist()
        seen.append([call for call in counted.calls if call != "forward"])
        counted.calls.clear()
        cache.forward(*draft.rows(8))
        cache.keep([0, 1])
        session.observe(Verified(tree=draft, path=np.array([0], np.int32), tokens=draft.tokens[:2]))
    assert seen == [["retrieve", "begin", "begin"], ["begin", "begin"], ["retrieve", "retrieve"], ["begin", "begin"]]
    session.close()
    assert counted.calls == ["release"]
