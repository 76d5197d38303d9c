"""Drafts on the decoders of encoder-decoders: the text is that of `generate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from encoder_decoders import SOURCE, build_encoder_decoder
from speculant import Speculator
from speculant.engines.hf.prompt import slices_by_length

pytestmark = pytest.mark.skipif(not slices_by_length(), reason="this release prepares such passes otherwise")
FURTHER = ("mbart", "plbart", "pegasus", "blenderbot", "led", "mt5", "longt5", "switch")


def _generate(model: Any, **options: Any) -> list[int]:
    torch.manual_seed(1)
    settings: dict[str, Any] = {"max_new_tokens": 30, "do_sample": False}
    if model.config.model_type == "whisper":
        sound = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(2))
        settings["input_features"] = sound
    else:
        settings["input_ids"] = SOURCE
    ids: list[int] = model.generate(**settings | options)[0].tolist()
    return ids


@pytest.mark.parametrize(
    ("name", "attention"),
    [(name, "sdpa") for name in ("bart", "marian", "m2m_100", "t5", "umt5", "whisper")]
    + [("bart", "eager")]
    + [pytest.param(name, "", marks=pytest.mark.slow) for name in FURTHER],
)
@pytest.mark.filterwarnings("ignore")  # transformers warns of Whisper's own options
def test_text_is_that_of_generate(name: str, attention: str) -> None:
    """Guards learned, sinusoidal and relative positions of trees, cross-attention, and rows kept of a path."""
    model = build_encoder_decoder(name, attention)
    expected = _generate(model)
    speculator = Speculator.from_transformers(model, method="mix", nodes=7, fast=False)
    for _ in range(2):  # the second text is known to the memory
        assert _generate(model, custom_generate=speculator) == expected
    stats = speculator.last_stats
    assert stats is not None
    assert stats.mat > 2
    assert speculator.engine.capabilities.trees


def test_sampled_text_is_that_of_generate() -> None:
    """Guards sampling on a decoder: with the same random stream, the text is that of `generate`."""
    model = build_encoder_decoder("t5")
    expected = _generate(model, do_sample=True, top_k=0)
    speculator = Speculator.from_transformers(model, method="mix", nodes=7, fast=False)
    assert _generate(model, do_sample=True, top_k=0, custom_generate=speculator) == expected


def test_drafts_copy_from_the_source() -> None:
    """Guards prompt lookup over what the encoder reads."""
    model = build_encoder_decoder("bart")
    expected = _generate(model)[1:]
    speculator = Speculator.from_transformers(model, method="lookup", fast=False)
    prompt = SOURCE[0].tolist()
    generation = speculator.prepare(prompt, max_new_tokens=30, temperature=0)
    assert generation.sequence.start.prompt.tolist() == [*prompt, 2]
    assert speculator.generate(prompt, max_new_tokens=30, temperature=0).ids == expected


@pytest.mark.parametrize(
    ("name", "attention"),
    [("bart", "sdpa"), ("t5", "eager"), ("umt5", "sdpa"), pytest.param("t5", "sdpa", marks=pytest.mark.slow)]
    + [pytest.param(name, "", marks=pytest.mark.slow) for name in ("marian", "m2m_100", *FURTHER)],
)
def test_texts_of_a_batch_share_passes(name: str, attention: str) -> None:
    """Guards passes over rows of several sources: positions, biases and cross-attention stay each text's own."""
    model = build_encoder_decoder(name, attention)
    prompts = [SOURCE[0].tolist(), SOURCE[0, :6].tolist(), SOURCE[0, 3:].tolist()]
    expected = [_generate(model, input_ids=torch.tensor([prompt]), max_new_tokens=24)[1:] for prompt in prompts]
    speculator = Speculator.from_transformers(model, method="mix", nodes=7, fast=False)
    for _ in range(2):
        found = speculator.generate_batch(prompts, max_new_tokens=24, temperature=0)
        assert [each.ids for each in found] == expected
    assert ("run one after the other" in speculator.engine.batch_note) == (
        name == "led"
    )  # which attends in its own way


def test_padding_of_a_source_is_left_out() -> None:
    """Guards sources with padding: passes read the states of its tokens alone, and the text is the same."""
    model = build_encoder_decoder("bart")
    padded = {"input_ids": torch.nn.functional.pad(SOURCE, (0, 4)), "attention_mask": torch.ones(1, 15).long()}
    padded["attention_mask"][:, 11:] = 0
    speculator = Speculator.from_transformers(model, method="mix", nodes=7, fast=False)
    assert _generate(model, **padded, custom_generate=speculator) == _generate(model, **padded)


def test_texts_end_at_the_last_position_of_a_decoder() -> None:
    """Guards tables of positions: no draft reaches beyond them, where a lookup would fail."""
    model = build_encoder_decoder("whisper")
    expected = _generate(model, max_new_tokens=63)
    speculator = Speculator.from_transformers(model, method="mix", nodes=16, fast=False)
    for _ in range(2):
        assert _generate(model, max_new_tokens=63, custom_generate=speculator) == expected
