"""RecurrentGemma, whose class keeps states on its modules: texts have their own, and the model none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from architecture_matrix.catalogue import build
from passes import IDS, opened, plain_text, rows_of
from speculant import Speculator
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.probe.rounds import wrong_rows
from speculant.engines.hf.states.layers import LinearAttentionLayer
from trees import make_tree

if not hasattr(LinearAttentionLayer, "update_conv_state"):
    pytest.skip("this release of transformers has no layers to keep states in", allow_module_level=True)

OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0}


def module_states(model: Any) -> list[Any]:
    """Return what the model's modules hold of texts."""
    blocks = [layer.temporal_block for layer in model.model.layers if hasattr(layer.temporal_block, "rg_lru")]
    return [state for block in blocks for state in (block.conv1d_state, block.rg_lru.recurrent_states)]


def test_the_models_own_text_goes_on_between_ours() -> None:
    """Guards other callers: a text that somebody decodes on the model token by token is not touched by drafted ones."""
    model = build("recurrent_gemma", "eager")
    expected = plain_text(model, IDS, 6)
    speculator = Speculator.from_transformers(model, method="recycling", nodes=6, fast=False)
    speculator.generate([3, 4, 5], **OPTIONS)  # which probes the model, with texts of its own
    cache, ids, text = (
        model.generate(
            IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=1, do_sample=False, return_dict_in_generate=True
        ).past_key_values,
        IDS,
        list[int](),
    )
    text.append(expected[0])
    for _ in range(5):
        before = [state.clone() for state in module_states(model)]
        held = module_states(model)
        speculator.generate([9, 8, 7], **OPTIONS)
        assert all(one is other for one, other in zip(held, module_states(model), strict=True))
        assert all(torch.equal(one, other) for one, other in zip(before, held, strict=True))
        ids = torch.tensor([[text[-1]]])
        with torch.no_grad():
            logits = model(ids, past_key_values=cache, use_cache=True).logits
        text.append(int(logits[0, -1].argmax()))
    assert text == expected


def test_texts_in_turns() -> None:
    """Guards streams that interleave, sampled and greedy: each has the text that it has alone."""
    model = build("recurrent_gemma", "sdpa")
    speculator = Speculator.from_transformers(model, method="recycling", nodes=6, fast=False)
    requests: list[dict[str, Any]] = [OPTIONS, OPTIONS | {"temperature": 0.9, "seed": 3}]
    prompts = [IDS[0].tolist(), [7, 30, 41]]
    alone = [speculator.generate(prompt, **each).ids for prompt, each in zip(prompts, requests, strict=True)]
    streams = [iter(speculator.stream(prompt, **each)) for prompt, each in zip(prompts, requests, strict=True)]
    texts: list[list[int]] = [[], []]
    for _ in range(12):
        for stream, text in zip(streams, texts, strict=True):
            text += [token for piece in [*filter(None, [next(stream, None)])] for token in piece.tokens]
    assert texts == alone


def test_one_row_of_a_grown_tree() -> None:
    """Guards single rows below others, which the class would take for decoding behind the committed text."""
    engine = HFEngine(build("recurrent_gemma", "eager"))
    sequence = opened(engine, IDS)
    tokens, parents = rows_of(7, make_tree([4, 9, 11, 20], [-1, -1, 0, 1]))
    whole = sequence.forward(tokens, parents).logits
    sequence.rollback()
    parts = [sequence.forward(tokens[:2], parents[:2]).logits]
    parts += [sequence.forward(tokens[row : row + 1], parents[row : row + 1]).logits for row in range(2, 5)]
    assert not wrong_rows(torch.cat(parts), whole, torch.float32).numel()
    sequence.keep([0, 1, 3])
    other = opened(engine, torch.tensor([[*IDS[0].tolist(), 7, 4, 11]]))
    assert not wrong_rows(sequence.plain_logits([13]), other.plain_logits([13]), torch.float32).numel()


def test_a_cache_is_of_no_use_elsewhere() -> None:
    """Guards `generate(past_key_values=...)`: without the states on the modules, texts would be wrong."""
    model = build("recurrent_gemma", "eager")
    speculator = Speculator.from_transformers(model, method="recycling", nodes=6, fast=False)
    first = speculator.generate(IDS[0].tolist(), **OPTIONS)
    longer = torch.tensor([[*IDS[0].tolist(), *first.ids, 9]])
    with pytest.raises(UnsupportedError, match="on its modules"):
        model.generate(longer, past_key_values=first.cache, max_new_tokens=3)
    filled = model.generate(IDS, max_new_tokens=2, do_sample=False, return_dict_in_generate=True).past_key_values
    with pytest.raises(UnsupportedError, match="not hold the states"):
        speculator.generate([*IDS[0].tolist(), 9, 9, 9], cache=filled, **OPTIONS)


@pytest.mark.parametrize("name", ["recurrent_gemma", pytest.param("minimax", marks=pytest.mark.slow)])
def test_random_texts(name: str) -> None:
    """Guards equality over many prompts, seeds and lengths: greedy and sampled texts are those of plain decoding."""
    random, model = np.random.default_rng(2), build(name, "sdpa")
    plain = Speculator.from_transformers(model, method="none", nodes=0, fast=False)
    drafted = Speculator.from_transformers(model, method="recycling", nodes=8, fast=False)
    prompts = [random.integers(3, 61, int(random.integers(2, 18))).tolist() for _ in range(6)]
    for seed, prompt in enumerate(prompts):
        options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0.8 * (seed % 2), "seed": seed}
        assert drafted.generate(prompt, **options).ids == plain.generate(prompt, **options).ids
    greedy = [plain_text(model, torch.tensor([prompt]), 12) for prompt in prompts]
    assert [each.ids for each in drafted.generate_batch(prompts, size=3, **OPTIONS)] == greedy
