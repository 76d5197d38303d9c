"""The cache of a transformers target: rollback, kinds of caches, devices, adapters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from speculant.engines.hf.target import TransformersTarget
from transformers import DynamicCache, QuantizedCache, StaticCache

from models import tiny_model
from speculant import Speculator
from speculant.core.errors import OutOfMemoryError, UnsupportedError
from speculant.core.tree import DraftTree
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.capabilities import check_model

IDS = torch.tensor([[5, 9, 14, 3, 8]])


def opened(name: str = "llama") -> TransformersTarget:
    model = tiny_model(name)
    target = TransformersTarget(model, check_model(model), IDS)
    with torch.no_grad():
        target.prefill()
    return target


@pytest.mark.parametrize("path", [[], [0], [0, 1], [2], [2, 3]])
def test_commit_keeps_the_rows_of_root_and_path(path: list[int]) -> None:
    """Guards rollback: the cache is the one that a pass over the committed tokens alone would have left."""
    tree = DraftTree(
        np.array([7, 8, 9, 10], np.int32), np.array([-1, 0, -1, 2], np.int32), np.ones(4, np.float32)
    )  # fmt: skip
    target = opened()
    with torch.no_grad():
        target.verify(4, tree)
        target.commit(path)
        text = torch.cat([IDS, torch.tensor([[4, *tree.tokens[path].tolist()]])], dim=1)
        cache = DynamicCache()
        target.model(text, past_key_values=cache)
    assert target.cached == text.shape[1]
    for kept, alone in zip(target.cache.layers, cache.layers, strict=True):
        torch.testing.assert_close(kept.keys, alone.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(kept.values, alone.values, atol=1e-4, rtol=1e-4)


def test_sliding_caches_are_replaced_by_growing_ones() -> None:
    """Guards windows: a sliding layer forgets rows that a rollback needs."""
    config = tiny_model("gemma3").config
    assert not any(usable_cache(DynamicCache(config=config)).is_sliding)


@pytest.mark.parametrize("kind", [StaticCache, QuantizedCache])
def test_other_caches_are_refused(kind: type) -> None:
    """Guards caches without rollback."""
    with pytest.raises(UnsupportedError, match="DynamicCache"):
        usable_cache(object.__new__(kind))


def test_a_filled_sliding_cache_is_refused() -> None:
    """Guards a cache that has already forgotten rows."""
    model = tiny_model("gemma3")
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(IDS, past_key_values=cache)
    with pytest.raises(UnsupportedError, match="rolled back"):
        usable_cache(cache)


def test_running_out_of_memory_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the message when the device is full."""
    target = opened()

    def full(**_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(target, "model", full)
    monkeypatch.setattr(full, "device", torch.device("cpu"), raising=False)
    with pytest.raises(OutOfMemoryError, match="fewer nodes"):
        target.verify(4, DraftTree.empty())


def test_top_tokens_of_every_row() -> None:
    """Guards what learning drafters get back."""
    ids, logits = opened().top(torch.tensor([[1.0, 5.0, 3.0], [9.0, 2.0, 4.0]]), 2)
    assert ids.tolist() == [[1, 2], [0, 2]]
    assert logits.tolist() == [[5.0, 3.0], [9.0, 4.0]]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_a_lora_adapter_is_part_of_the_target() -> None:
    """Guards PEFT: the adapter's text, not the base model's."""
    peft = pytest.importorskip("peft")
    model = tiny_model("llama")
    plain = model.generate(IDS, max_new_tokens=20, do_sample=False)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    expected = adapted.generate(input_ids=IDS, max_new_tokens=20, do_sample=False)
    speculator = Speculator.from_transformers(adapted)
    assert not torch.equal(plain, expected)
    assert speculator.generate(IDS, max_new_tokens=20, temperature=0).ids == expected[0, 5:].tolist()
    drop_in = adapted.generate(input_ids=IDS, max_new_tokens=20, do_sample=False, custom_generate=speculator)
    assert torch.equal(drop_in, expected)


def test_a_spread_model_is_decoded_and_noted(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Guards `device_map`: layers offloaded to disk run through accelerate's hooks."""
    accelerate = pytest.importorskip("accelerate")
    model = tiny_model("llama")
    expected = model.generate(IDS, max_new_tokens=12, do_sample=False)[0, 5:].tolist()
    places = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
    places |= {"model.layers.2": "cpu", "model.norm": "cpu", "lm_head": "cpu"}
    folder = str(tmp_path_factory.mktemp("offload"))
    spread = accelerate.dispatch_model(model, places, offload_dir=folder, main_device="cpu", force_hooks=True)
    speculator = Speculator.from_transformers(spread)
    result = speculator.generate(IDS, max_new_tokens=12, temperature=0)
    assert result.ids == expected
    assert any("several devices" in note for note in result.stats.notes)
