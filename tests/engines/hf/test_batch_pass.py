"""Passes over several sequences, on models whose layers or positions do not make that easy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from speculant.engines.hf.target import TransformersTarget
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from guesses import LENGTHS, alone, guessing, prompts
from models import SHAPE, tiny_model
from speculant import Speculator
from speculant.core.tree import DraftTree
from speculant.engines.hf.batch_pass import RaggedPass
from speculant.engines.hf.capabilities import check_model

GREEDY: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 32,
    "rope_theta": 1e4,
    "factor": 8.0,
}


def opened(model: Any, tokens: int) -> TransformersTarget:
    target = TransformersTarget(model, check_model(model), torch.tensor([(prompts()[2] * 2)[:tokens]]))
    with torch.no_grad():
        target.prefill()
    return target


def test_longrope_texts_are_those_of_requests_alone() -> None:
    """Guards sequences on either side of the length from which a pass rotates all of its rows by other factors."""
    model = tiny_model("llama", rope_parameters=LONGROPE)
    texts = alone(model, [GREEDY] * len(LENGTHS))
    speculator = guessing(model, texts)
    batch = speculator.batch(6)
    tickets = [batch.add(prompt, **GREEDY) for prompt in prompts()]
    for _ in batch:
        pass
    assert [ticket.result.ids for ticket in tickets] == texts
    assert not batch.stats.notes


def test_longrope_drafts_end_before_the_limit() -> None:
    """Guards the root's row from nodes beyond that length; behind it drafts are whole again."""
    model = tiny_model("llama", rope_parameters=LONGROPE)
    draft = DraftTree.from_paths([[6, 7, 8, 9], [5]])
    for tokens, depth in ((20, 4), (29, 2), (31, 0), (32, 4), (40, 4)):
        shaped = opened(model, tokens).shape(draft)
        assert max(shaped.depths(), default=0) == depth
        with torch.no_grad():
            alone = opened(model, tokens).verify(5, DraftTree.empty())
            torch.testing.assert_close(opened(model, tokens).verify(5, shaped)[:1], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
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
    texts = alone(model, [GREEDY] * len(LENGTHS))
    batch = guessing(model, texts).batch(6)
    tickets = [batch.add(prompt, **GREEDY) for prompt in prompts()]
    for _ in batch:
        pass
    assert [ticket.result.ids for ticket in tickets] == texts
    # The first transformers 5 caches what was made of the latents, so that nothing is left out there.
    assert all("a way of their own" in note for note in batch.stats.notes)


def verify(ragged: RaggedPass, targets: list[TransformersTarget]) -> None:
    with torch.no_grad():
        ragged.verify(targets, [5] * len(targets), [DraftTree.empty()] * len(targets))
    for target in targets:
        target.commit([])


def test_a_hiccup_in_the_first_pass_is_none_of_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards joint passes from an error that passes, and one that single passes have too, from being a verdict."""
    model = tiny_model("llama")
    ragged, targets = RaggedPass(model, check_model(model)), [opened(model, 9), opened(model, 4)]
    layer = model.model.layers[1].mlp
    own, left = layer.forward, [3]

    def failing(states: torch.Tensor) -> torch.Tensor:
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError("a hiccup")
        return own(states)

    monkeypatch.setattr(layer, "forward", failing)
    with pytest.raises(ValueError, match="hiccup"):
        verify(ragged, targets)  # the joint pass, then the first sequence's own
    for target in targets:
        target.rollback()
    verify(ragged, targets)  # the joint pass
    assert not ragged.note
    left[0] = 0
    verify(ragged, targets)
    left[0] = 1
    with pytest.raises(ValueError, match="hiccup"):  # now that it is known to work, an error is an error
        verify(ragged, targets)


def test_requests_of_a_batch_say_how_they_were_run() -> None:
    """Guards the note of a batch on a model that verifies chains only."""
    speculator = Speculator.from_transformers(tiny_model("bloom"), method="none")
    with speculator.batch(2) as batch:
        for prompt in prompts()[:2]:
            batch.add(prompt, max_new_tokens=3)
        for _ in batch:
            pass
    assert "one after the other" in batch.stats.notes[0]
