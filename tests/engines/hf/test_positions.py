"""Models that count positions in ways of their own: by cache slot, up to a mask's size, under another name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    MarianConfig,
    MarianForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    TrOCRConfig,
    TrOCRForCausalLM,
    WhisperConfig,
    WhisperForCausalLM,
)

from models import VOCABULARY, tiny_model
from pairwise import in_turn
from passes import IDS, plain_text
from speculant import Speculator
from speculant.core.errors import PromptError
from speculant.engines.hf.probe.class_checks import check_model

TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    **TOKENS,
}


def build(name: str, positions: int = 64) -> Any:
    """Return a tiny decoder whose texts do not end."""
    torch.manual_seed(5)
    room = {"max_position_embeddings": positions}
    neo = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48}
    neo |= {"attention_types": [[["global"], 2]], **room, **TOKENS}
    opt = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    opt |= {"ffn_dim": 48, "word_embed_proj_dim": 32, **room, **TOKENS}
    builders: dict[str, Any] = {
        "bart": lambda: BartForCausalLM(BartConfig(**DECODER, **room, forced_eos_token_id=None)),
        "marian": lambda: MarianForCausalLM(MarianConfig(**DECODER, **room, forced_eos_token_id=None)),
        "trocr": lambda: TrOCRForCausalLM(TrOCRConfig(**DECODER, **room)),
        "whisper": lambda: WhisperForCausalLM(
            WhisperConfig(**DECODER, max_target_positions=positions, begin_suppress_tokens=None, suppress_tokens=None)
        ),
        "gpt_neo": lambda: GPTNeoForCausalLM(GPTNeoConfig(**neo)),
        "opt": lambda: OPTForCausalLM(OPTConfig(**opt)),
    }
    model = builders[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5)
    return model


def padded_text(model: Any, pad: int, tokens: int, **options: Any) -> list[list[int]]:
    """Return the texts of two rows, the second with padding in front of it."""
    rows = torch.cat([IDS, torch.cat([torch.zeros(1, pad, dtype=torch.long), IDS[:, pad:]], dim=1)])
    mask = (torch.arange(rows.shape[1]) >= torch.tensor([[0], [pad]])).long()
    found: list[list[int]] = model.generate(
        rows, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None, **options
    )[:, rows.shape[1] :].tolist()
    return found


@pytest.mark.parametrize(
    ("name", "method"), in_turn(["bart", "marian", "trocr", "whisper", "opt"], ["lookup", "none"], whole=1)
)
def test_padding_takes_positions_where_slots_are_counted(name: str, method: str) -> None:
    """Guards left-padded rows: padding moves what follows where a class counts the rows of its cache."""
    model = build(name)
    # Padding in front of which nothing can be seen is attended to evenly; the last row of a prompt sees tokens.
    speculator = Speculator.from_transformers(model, method=method, fast=False, nodes=8 if method == "lookup" else None)
    assert padded_text(model, 5, 16, custom_generate=speculator) == padded_text(model, 5, 16)


@pytest.mark.parametrize(("name", "nodes"), in_turn(["gpt_neo", "whisper", "bart", "opt"], [6, 40]))
def test_texts_end_where_positions_do(name: str, nodes: int) -> None:
    """Guards the last positions: a draft has room in masks and tables, or is left out; plain decoding goes on."""
    model = build(name)
    prompt = IDS[0].tolist() * 3
    maximum = 64 - len(prompt)
    ids = torch.tensor([prompt])
    speculator = Speculator.from_transformers(model, method="recycling", nodes=nodes, fast=False)
    result = speculator.generate(prompt, max_new_tokens=100, temperature=0, eos_token_id=None)
    assert result.ids == plain_text(model, ids, maximum)
    assert result.stats.drafted > 0


def test_other_names_of_positions() -> None:
    """Guards Whisper, whose config names them `max_target_positions`, and GPT-Neo's mask."""
    assert check_model(build("whisper", 40)).positions == 40
    assert check_model(build("gpt_neo", 48)).slots == 48
    assert check_model(build("opt", 48)).slots is None


def test_padding_takes_no_position_where_ids_are_given() -> None:
    """Guards prompts that fit: 62 tokens behind 4 of padding on 64 positions."""
    model = tiny_model("gpt2")
    model = type(model)(model.config.__class__(**{**model.config.to_dict(), "n_positions": 64})).eval()
    ids = torch.cat(
        [torch.zeros(1, 4, dtype=torch.long), torch.arange(3, 59)[None], torch.tensor([[5, 6, 7, 8, 9, 10]])], 1
    )
    mask = (torch.arange(66) >= 4).long()[None]
    expected = plain_text(model, ids, 2, attention_mask=mask)
    speculator = Speculator.from_transformers(model, method="lookup", nodes=4, fast=False)
    options: dict[str, Any] = {"temperature": 0, "eos_token_id": None, "attention_mask": mask}
    assert speculator.generate(ids, max_new_tokens=2, **options).ids == expected
    with pytest.raises(PromptError, match="64 positions"):
        speculator.generate(torch.cat([ids, ids[:, -2:]], 1), max_new_tokens=2, **options | {"attention_mask": None})
