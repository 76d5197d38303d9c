"""Sequences of models that drafts cannot be verified on: the text is that of `generate`, and nothing is taken back."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from transformers import (
    ProphetNetConfig,
    ProphetNetForConditionalGeneration,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
)

from models import VOCABULARY
from passes import IDS, plain_text
from speculant import Speculator
from speculant.core.errors import ModelError, OutOfMemoryError, UnsupportedError

PROMPT = IDS[0].tolist()
TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


def refused(name: str) -> Any:
    """Return a tiny model that drafts are not verified on."""
    torch.manual_seed(3)
    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, **TOKENS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    builders = {
        "recurrent_gemma": lambda: RecurrentGemmaForCausalLM(
            RecurrentGemmaConfig(
                **shape | {"num_hidden_layers": 3},
                **heads,
                head_dim=8,
                lru_width=32,
                attention_window_size=16,
                block_types=["recurrent", "recurrent", "attention"],
            )
        ),
        "prophetnet": lambda: ProphetNetForConditionalGeneration(
            ProphetNetConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                encoder_ffn_dim=48,
                decoder_ffn_dim=48,
                num_encoder_layers=2,  # its caches have as many
                num_decoder_layers=2,
                num_encoder_attention_heads=4,
                num_decoder_attention_heads=4,
                max_position_embeddings=128,
                decoder_start_token_id=2,
                **TOKENS,
            )
        ),
    }
    model = builders[name]().eval()
    if name == "recurrent_gemma":
        block = model.model.layers[0].temporal_block
        block.forward = functools.partial(type(block).forward, block)  # exchanged: no view of the block can be made
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


def reference(model: Any, tokens: int, **options: Any) -> list[int]:
    """Return what `generate` appends to the decoder's prompt."""
    if not model.config.is_encoder_decoder:
        return plain_text(model, IDS, tokens, **options)
    settings: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False, "attention_mask": torch.ones_like(IDS)}
    found: list[int] = model.generate(IDS, **settings | options)[0, 1:].tolist()
    return found


@pytest.mark.parametrize("name", ["recurrent_gemma", "prophetnet"])
def test_text_is_that_of_generate(name: str) -> None:
    """Guards every way in: alone, in a batch, streamed, sampled, and as a decoding method of `generate`."""
    model = refused(name)
    speculator = Speculator.from_transformers(model, fast=False)
    expected = reference(model, 12)
    result = speculator.generate(PROMPT, max_new_tokens=12, temperature=0)
    assert result.ids == expected
    assert len(expected) == 12
    assert "decoded plainly, without drafts" in result.stats.notes[0]
    assert result.stats.drafted == 0
    several = speculator.generate_batch([PROMPT, PROMPT], max_new_tokens=12, temperature=0)
    assert [each.ids for each in several] == [expected] * 2
    stream = speculator.stream(PROMPT, max_new_tokens=12, temperature=0)
    assert [token for piece in stream for token in piece.tokens] == expected
    torch.manual_seed(5)
    sampled = reference(model, 12, do_sample=True, top_k=0)
    torch.manual_seed(5)
    assert speculator.generate(PROMPT, max_new_tokens=12, temperature=1.0, top_k=0).ids == sampled
    assert reference(model, 12, custom_generate=speculator) == expected


def test_several_rows_go_through_the_models_own_loop() -> None:
    """Guards padded rows of a refused model in `model.generate(custom_generate=...)`."""
    model = refused("recurrent_gemma")
    rows = torch.cat([IDS, torch.cat([torch.zeros(1, 4, dtype=torch.long), IDS[:, 4:]], dim=1)])
    mask = (torch.arange(rows.shape[1]) >= torch.tensor([[0], [4]])).long()
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    speculator = Speculator.from_transformers(model, fast=False)
    found = model.generate(rows, custom_generate=speculator, **options)
    assert torch.equal(found, model.generate(rows, **options))
    with pytest.raises(UnsupportedError, match="one random stream"):
        model.generate(rows, custom_generate=speculator.bind(seed=1), **options)


def test_states_on_modules_are_one_texts() -> None:
    """Guards RecurrentGemma, whose texts would share a state: batches decode them in order, streams in turns fail."""
    model = refused("recurrent_gemma")
    speculator = Speculator.from_transformers(model, fast=False)
    assert [each.ids for each in speculator.generate_batch([PROMPT] * 2, max_new_tokens=6, temperature=0)] == [
        reference(model, 6)
    ] * 2
    one, other = (iter(speculator.stream(PROMPT, max_new_tokens=6, temperature=0)) for _ in range(2))
    next(one)
    next(other)
    with pytest.raises(ModelError, match="one text after the other"):
        next(one)


def test_strict_refuses() -> None:
    """Guards those who would rather have an error than plain speed."""
    with pytest.raises(UnsupportedError, match=r"several tokens ahead.*Leave out `strict`"):
        Speculator.from_transformers(refused("prophetnet"), strict=True)


def test_a_method_that_cannot_be_built_is_left_out() -> None:
    """Guards heads and layers, which need what a refused model has not: the text comes all the same."""
    model = refused("prophetnet")
    speculator = Speculator.from_transformers(model, method="layer-skip", fast=False)
    assert speculator.method == "none"
    assert speculator.generate(PROMPT, max_new_tokens=5, temperature=0).ids == reference(model, 5)


def test_a_full_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards states: a prompt that did not fit is read again from the start; a broken text does not go on wrongly."""
    model = refused("recurrent_gemma")
    expected = reference(model, 8)
    speculator = Speculator.from_transformers(model, fast=False)
    with speculator.batch(2) as batch:
        first = batch.add(PROMPT, max_new_tokens=8, temperature=0)
        own, calls = type(model).forward, list[int]()

        def full(self: Any, *args: Any, **options: Any) -> Any:
            calls.append(1)
            output = own(self, *args, **options)
            if len(calls) == 3:
                raise torch.OutOfMemoryError("no room")
            return output

        monkeypatch.setattr(type(model), "forward", full)
        try:
            for _ in batch:
                pass
        except OutOfMemoryError:
            pass
    assert first.result.ids == expected[: len(first.result.ids)]
    assert first.error is None or isinstance(first.error, ModelError)
