"""Passes over several sequences, on models whose layers or positions make that hard, and beside other threads."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from models import SHAPE, tiny_model
from pairwise import in_turn
from passes import greedy_texts, opened, plain_text
from speculant.core.engine import RequestedOutputs
from speculant.core.tree import DraftTree
from speculant.engines.hf.batch_attention import NAME, BatchCache
from speculant.engines.hf.caches import in_place_layer
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.cpu.batch_rows import PassRows
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.target_cache import HFTargetCache
from trees import random_draft

LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 32,
    "rope_theta": 1e4,
    "factor": 8.0,
}
SOURCE = np.random.default_rng(3)
PROMPTS = [torch.from_numpy(SOURCE.integers(3, 61, (1, length))) for length in (9, 1, 30, 4, 17, 9)]
MODELS = ["llama", "qwen3", "gemma3", "mistral", "mixtral", "gpt2", "phi3", "gpt_neox"]


@pytest.mark.parametrize(("name", "fast"), in_turn(MODELS, [False, True], whole=1))
def test_texts_of_a_batch_are_those_of_plain_decoding(name: str, fast: bool) -> None:
    """Guards sequences of different lengths and drafts, which attend to their own caches alone."""
    model = tiny_model(name)
    texts = [plain_text(model, ids, 16) for ids in PROMPTS]
    engine = HFEngine(model, acceleration=prepare_model(model, fast))
    assert greedy_texts(engine, PROMPTS, texts) == texts
    assert not engine.batch_note


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "nodes"), [("llama", 2), ("mistral", 2), ("qwen3", 2), ("llama", 6)])
def test_layers_of_a_batch_in_one_call_equal_those_sequence_by_sequence(
    name: str, nodes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards trees, padding, windows, full caches and many rows of several sequences, to the last bit."""
    monkeypatch.setattr(in_place_layer, "MIN_ROWS", 1)  # so that the caches are full after the prompt
    model = tiny_model(name, num_key_value_heads=1).to(dtype)
    engine = HFEngine(model, acceleration=prepare_model(model, True))
    random, padding = np.random.default_rng(4), torch.tensor([[0] * 5 + [1] * 25])
    drafts = [random_draft(random, place * nodes, 61) for place in range(len(PROMPTS))]

    def passes() -> tuple[list[torch.Tensor], int]:
        caches = [opened(engine, ids, padding=padding if ids.shape[1] == 30 else None) for ids in PROMPTS]
        logits, calls = list[torch.Tensor](), list[int]()
        with monkeypatch.context() as patch:
            own = BatchCache.attended_elsewhere
            patch.setattr(BatchCache, "attended_elsewhere", lambda *args: (calls.append(1), own(*args)))
            for _ in range(3):
                requests = [(cache, 5 + place, drafts[place]) for place, cache in enumerate(caches)]
                logits += [each.logits for each in engine.forward(requests)]
                for cache in caches:
                    cache.keep([0])
        return logits, len(calls)

    found, calls = passes()
    assert calls == 3 * model.config.num_hidden_layers
    for name in ("calls", "calls_of_all"):
        monkeypatch.setattr(PassRows, name, lambda *_: None)
    expected, calls = passes()
    assert not calls
    assert not engine.batch_note
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))


@pytest.mark.parametrize(("name", "attention"), in_turn(MODELS, ["sdpa", "eager"], whole=1))
def test_passes_of_a_batch_are_those_of_each_alone(name: str, attention: str) -> None:
    """Guards logits and best tokens of branching drafts, with padding."""
    engine = HFEngine(tiny_model(name, attention))
    padding = torch.tensor([[0] * 5 + [1] * 25])
    caches = [opened(engine, ids, padding=padding if ids.shape[1] == 30 else None) for ids in PROMPTS]
    random, needs = np.random.default_rng(4), RequestedOutputs(top_k=2)
    requests = [(cache, 5 + place, random_draft(random, place * 3, 61)) for place, cache in enumerate(caches)]
    together = engine.forward(requests, needs)
    for cache in caches:
        cache.rollback()
    for request, joint in zip(requests, together, strict=True):
        [alone] = engine.forward([request], needs)
        torch.testing.assert_close(joint.logits, alone.logits, atol=1e-4, rtol=1e-4)
        assert joint.top_ids.tolist() == alone.top_ids.tolist()
    assert not engine.batch_note


def test_longrope_texts_are_those_of_requests_alone() -> None:
    """Guards sequences on either side of the length from which a pass rotates all of its rows by other factors."""
    model = tiny_model("llama", rope_parameters=LONGROPE)
    texts = [plain_text(model, ids, 26) for ids in PROMPTS]  # four of them pass it
    engine = HFEngine(model)
    assert greedy_texts(engine, PROMPTS, texts) == texts
    assert not engine.batch_note


def test_longrope_drafts_end_before_the_limit() -> None:
    """Guards the root's row from nodes beyond that length; behind it drafts are whole again."""
    engine, text = HFEngine(tiny_model("llama", rope_parameters=LONGROPE)), PROMPTS[2].repeat(1, 2)
    for tokens, depth in ((20, 11), (29, 2), (31, 0), (32, 256 - 33), (40, 256 - 41)):
        cache = opened(engine, text[:, :tokens])
        assert cache.depth == depth
        [alone] = engine.forward([(cache, 5, DraftTree.empty())])
        cache.rollback()
        chain = DraftTree.from_paths([[6, 7, 8, 9][: min(depth, 4)]]) if depth else DraftTree.empty()
        [drafted] = engine.forward([(cache, 5, chain)])
        torch.testing.assert_close(drafted.logits[:1], alone.logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
def test_keys_made_after_the_cache_are_not_left_out(attention: str) -> None:
    """Guards latent attention (DeepSeek), whose cache may hold what keys and values are made of: one by one."""
    torch.manual_seed(1)
    latent = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "v_head_dim": 4, "qk_nope_head_dim": 4}
    experts = {"moe_intermediate_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2}
    config = DeepseekV3Config(
        **SHAPE | latent | experts | {"num_key_value_heads": 4, "topk_group": 1, "first_k_dense_replace": 1}
    )
    model = DeepseekV3ForCausalLM(config).eval()
    model.set_attn_implementation(attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    texts = [plain_text(model, ids, 12) for ids in PROMPTS]
    engine = HFEngine(model)
    assert greedy_texts(engine, PROMPTS, texts) == texts
    # The first transformers 5 caches what was made of the latents, so that nothing is left out there.
    assert engine.batch_note == "" or "behind the cache" in engine.batch_note


def verify(engine: HFEngine, caches: list[HFTargetCache]) -> None:
    engine.forward([(cache, 5, DraftTree.empty()) for cache in caches])
    for cache in caches:
        cache.keep([0])


def test_a_passing_error_in_the_first_pass_is_none_of_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards joint passes: neither a passing error, nor one that single passes have too, is a verdict on the model."""
    model = tiny_model("llama")
    engine = HFEngine(model)
    caches = [opened(engine, PROMPTS[0]), opened(engine, PROMPTS[3])]
    layer = model.model.layers[1].mlp.up_proj
    own, left = layer.forward, [3]

    def failing(states: torch.Tensor) -> torch.Tensor:
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError("for once")
        return own(states)

    monkeypatch.setattr(layer, "forward", failing)
    with pytest.raises(ValueError, match="for once"):
        verify(engine, caches)  # the joint pass, then the first sequence's own
    for cache in caches:
        cache.rollback()
    verify(engine, caches)  # the joint pass
    assert not engine.batch_note
    left[0] = 0
    verify(engine, caches)
    left[0] = 1
    with pytest.raises(ValueError, match="for once"):  # now that it is known to work, an error is an error
        verify(engine, caches)


def test_models_without_trees_say_how_they_were_run() -> None:
    """Guards the note of a batch on a model that verifies chains only."""
    model = tiny_model("bloom")
    texts = [plain_text(model, ids, 10) for ids in PROMPTS[:2]]
    engine = HFEngine(model)
    assert greedy_texts(engine, PROMPTS[:2], texts) == texts
    assert "one after the other" in engine.notes[-1]


def test_patched_attention_is_run_one_by_one() -> None:
    """Guards modules whose forward somebody has exchanged: a view of them would run the original's attention."""
    model = tiny_model("llama")
    for layer in model.model.layers:
        layer.self_attn.forward = functools.partial(type(layer.self_attn).forward, layer.self_attn)
    texts = [plain_text(model, ids, 10) for ids in PROMPTS]
    engine = HFEngine(model)
    assert greedy_texts(engine, PROMPTS, texts) == texts
    assert "replaced or compiled" in engine.batch_note


@pytest.mark.parametrize(("attention", "fast"), in_turn(["sdpa", "eager"], [True, False]))
def test_other_threads_use_the_model_meanwhile(attention: str, fast: bool) -> None:
    """Guards plain `generate` and another engine's batches beside a batch: each text is what it is alone."""
    model = tiny_model("llama", attention)
    texts = [plain_text(model, ids, 20) for ids in PROMPTS]
    acceleration, wrong, stop = prepare_model(model, fast), list[Any](), threading.Event()
    before = dict(vars(model.config))

    def generate(place: int) -> None:
        while not stop.is_set():
            if plain_text(model, PROMPTS[place], 20) != texts[place]:
                wrong.append(("generate", place))

    def batch() -> None:
        engine = HFEngine(model, acceleration=acceleration)
        while not stop.is_set():
            if greedy_texts(engine, PROMPTS[:3], texts[:3]) != texts[:3] or engine.batch_note:
                wrong.append(("batch", engine.batch_note))

    threads = [threading.Thread(target=generate, args=(2,)), threading.Thread(target=batch)]
    for thread in threads:
        thread.start()
    engine = HFEngine(model, acceleration=acceleration)
    for _ in range(3):
        if greedy_texts(engine, PROMPTS, texts) != texts:
            wrong.append(("main", engine.batch_note))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert vars(model.config) == before
    assert model.config._attn_implementation == attention != NAME
