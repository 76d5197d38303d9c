"""Passes on chosen rows of a cache: their logits, what they follow, and what failures and interrupts leave behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from architecture_matrix.catalogue import build, names
from interrupts import interrupted
from models import hybrid_model, tiny_model
from pairwise import paired
from passes import IDS, opened, rows_of
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sparse_cache import RowBudget
from speculant.engines.hf.caches.sparse_cache import HFSparseCache, whole_cache_reason
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.target_cache import HFTargetCache
from trees import make_tree

TREE = make_tree([7, 8, 9, 10], [-1, 0, -1, 2])
ALL = RowBudget(sinks=4, recent=64, retrieved=0, page=4)
FEW = RowBudget(sinks=2, recent=3, retrieved=4, page=2)
LONG = torch.cat([IDS, IDS.flip(1), IDS], dim=1)


def grown(sparse: HFSparseCache, root: int) -> torch.Tensor:
    """Return the logits of a root and the tree below it, level by level."""
    first = sparse.begin(root)
    below = sparse.forward(np.array([7, 9], np.int32), np.array([0, 0], np.int32))
    last = sparse.forward(np.array([8, 10], np.int32), np.array([1, 2], np.int32))
    return torch.stack([first[0], below[0], last[0], below[1], last[1]])


def sparse_of(cache: HFTargetCache, budget: RowBudget) -> HFSparseCache:
    """Return an opened sparse cache, its rows chosen."""
    sparse = cache.open_sparse(budget)
    assert isinstance(sparse, HFSparseCache)
    sparse.retrieve(4)
    return sparse


@pytest.mark.parametrize(
    ("name", "attention", "fast"),
    paired(["llama", "qwen3", "gemma3", "mistral", "gpt2", "phi3"], ["sdpa", "eager"], [False, True]),
)
def test_with_all_rows_a_draft_has_the_targets_logits(name: str, attention: str, fast: bool) -> None:
    """Guards positions, masks, windows, compiled passes, trees and committed rows, where no row is missing."""
    model = tiny_model(name, attention)
    cache = opened(HFEngine(model, acceleration=prepare_model(model, fast)), LONG)
    sparse = cache.open_sparse(ALL)
    logits = sparse.retrieve(4)
    for root in (4, 6, 3):
        expected = cache.forward(*rows_of(root, TREE)).logits
        cache.rollback()
        torch.testing.assert_close(grown(sparse, root), expected, atol=2e-4, rtol=1e-4)
        if root == 4:
            torch.testing.assert_close(logits, expected[:1], atol=2e-4, rtol=1e-4)
        cache.forward(*rows_of(root, TREE))
        cache.keep([0, 1, 2])


@pytest.mark.parametrize("name", ["deepseek_v3", "gemma4_text", "gpt_oss", "llama (rope: longrope)"])
def test_other_attention(name: str) -> None:
    """Guards keys made of latent rows, heads of several sizes, attention with sinks of its own, and rotary factors."""
    if name not in names():
        pytest.skip("this release of transformers has no such class")
    cache = opened(HFEngine(build(name, "eager", positions=128)), LONG)
    expected = cache.forward(*rows_of(4, TREE)).logits
    cache.rollback()
    torch.testing.assert_close(grown(sparse_of(cache, ALL), 4), expected, atol=2e-4, rtol=1e-3)
    assert grown(sparse_of(cache, FEW), 4).isfinite().all()


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_with_few_rows_others_are_not_read(name: str) -> None:
    """Guards what a cache holds: so many rows, and a draft's logits are of these alone, again and again the same."""
    model = tiny_model(name, "eager", num_hidden_layers=3)
    cache = opened(HFEngine(model), LONG)
    sparse = sparse_of(cache, FEW)
    assert sparse._cache is not None
    for index, layer in enumerate(sparse._cache.layers):
        held = 12 if index in sparse._sliding else 9 + (36 - 5) % 2
        assert layer.keys.shape[-2] == held + 1  # and the root's
    several = torch.stack([grown(sparse, 4), grown(sparse, 4)])
    assert torch.equal(*several)
    assert not torch.allclose(several[0][:1], cache.forward(*rows_of(4, TREE)).logits[:1], atol=1e-3)


def test_padding_is_never_chosen() -> None:
    """Guards padded prompts: rows and positions are the text's."""
    model = tiny_model("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.div_(8)  # so that no two pages have next to no weight
    padded = torch.cat([torch.zeros((1, 7), dtype=torch.long), LONG], dim=1)
    engine = HFEngine(model)
    cache = opened(engine, padded, padding=(torch.arange(43) >= 7).long()[None])
    for budget in (ALL, FEW):
        expected = grown(sparse_of(opened(engine, LONG), budget), 4)
        torch.testing.assert_close(grown(sparse_of(cache, budget), 4), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("fast", [False, True])
def test_an_interrupt_leaves_both_caches_as_they_were(fast: bool) -> None:
    """Guards Ctrl-C in a choice of rows and in a draft: the text goes on, and so does the next draft."""
    model = tiny_model("llama")
    cache = opened(HFEngine(model, acceleration=prepare_model(model, fast)), LONG)
    expected = cache.forward(*rows_of(4, TREE)).logits
    cache.rollback()
    sparse = sparse_of(cache, FEW)
    drafted = grown(sparse, 4)
    line, reached = 1, True
    while reached:
        reached = interrupted(lambda: (sparse.retrieve(4), grown(sparse, 4)), line)
        cache.rollback()  # as a sequence does that fails
        assert (cache.length, cache.cache.get_seq_length()) == (36, 36)
        torch.testing.assert_close(grown(sparse, 4), drafted, atol=1e-4, rtol=1e-4)
        line += 61
    assert line > 100
    torch.testing.assert_close(cache.forward(*rows_of(4, TREE)).logits, expected, atol=1e-4, rtol=1e-4)


def test_calls_out_of_turn() -> None:
    """Guards the contract: drafts need chosen rows, and rows are chosen where the text has none of a draft."""
    cache = opened(HFEngine(tiny_model("llama")), LONG)
    sparse = cache.open_sparse(FEW)
    with pytest.raises(UsageError, match="before the first `retrieve`"):
        sparse.begin(4)
    cache.forward(*rows_of(4, TREE))
    with pytest.raises(UsageError, match="roll its cache back"):
        sparse.retrieve(4)
    cache.rollback()
    sparse.retrieve(4)
    sparse.release()
    with pytest.raises(UsageError, match="holds no rows"):
        sparse.begin(4)


def test_models_that_read_their_whole_cache() -> None:
    """Guards the refusals: each gives its reason, before a model is decoded and when a cache is opened."""
    flash = tiny_model("llama")
    flash.config._attn_implementation = "flash_attention_2"
    cases: list[tuple[Any, str]] = [
        (tiny_model("bloom"), "no explicit attention masks"),
        (flash, "no explicit attention masks"),
        (hybrid_model(), "keep a state"),
    ]
    for model, reason in cases:
        assert reason in whole_cache_reason(model)
        assert "'mix'" in whole_cache_reason(model)
    with pytest.raises(UnsupportedError, match="keep a state"):
        opened(HFEngine(cases[-1][0]), LONG).open_sparse(FEW)  # type: ignore[union-attr]
    assert not whole_cache_reason(tiny_model("gemma3"))


def test_attention_of_another_way() -> None:
    """Guards classes that change keys behind their cache: no rows are chosen by queries that are not seen."""
    model = tiny_model("llama")
    attention = type(model.model.layers[0].self_attn)
    cache = opened(HFEngine(model), LONG)

    class Another(attention):  # type: ignore[misc, valid-type]
        def forward(self, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            return hidden_states, None

    for layer in model.model.layers:
        layer.self_attn.__class__ = Another
    with pytest.raises(UnsupportedError, match="does not expose its queries"):
        cache.open_sparse(FEW).retrieve(4)
