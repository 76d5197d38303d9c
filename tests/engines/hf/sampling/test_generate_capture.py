"""What `generate` may ask of this loop, and how the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models import tiny_model
from speculant import Speculator
from speculant.core.errors import TokenizerError, UnsupportedError, UsageError

IDS = torch.tensor([[5, 9, 14, 3, 8]])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"return_dict_in_generate": True, "output_attentions": True}, "output_attentions"),
        ({"return_dict_in_generate": True, "output_hidden_states": True}, "hidden states"),
        ({"cache_implementation": "static"}, "StaticCache"),
        ({"use_cache": False}, "use_cache"),
    ],
    ids=["beams", "attentions", "hidden-states", "static-cache", "no-cache"],
)
def test_what_cannot_be_honoured_is_refused(options: dict[str, Any], reason: str) -> None:
    """Guards against silently ignored options."""
    model = tiny_model("llama", "eager")
    with pytest.raises(UnsupportedError, match=reason):
        model.generate(IDS, max_new_tokens=4, custom_generate=Speculator.from_transformers(model), **options)


def test_several_texts_where_one_is_returned_are_refused() -> None:
    """Guards `generate` and `stream`, whose result is one text."""
    speculator = Speculator.from_transformers(tiny_model("llama"))
    with pytest.raises(UnsupportedError, match="2 sequences"):
        speculator.generate(IDS.repeat(2, 1), max_new_tokens=4)
    with pytest.raises(UnsupportedError, match="3 sequences"):
        speculator.generate(IDS, max_new_tokens=4, temperature=1.0, num_return_sequences=3)


def test_stop_strings_need_a_tokenizer() -> None:
    """Guards the message when there is none."""
    with pytest.raises(TokenizerError, match="tokenizer"):
        Speculator.from_transformers(tiny_model("llama")).generate(IDS, stop="x")


def test_another_model_is_refused() -> None:
    """Guards a speculator bound to one model from decoding with another."""
    speculator = Speculator.from_transformers(tiny_model("llama"))
    with pytest.raises(UsageError, match="another model"):
        tiny_model("qwen3").generate(IDS, max_new_tokens=4, custom_generate=speculator)


def test_prefill_in_chunks_gives_the_same_text() -> None:
    """Guards `prefill_chunk_size`."""
    model = tiny_model("llama")
    plain = model.generate(IDS, max_new_tokens=20, do_sample=False)
    options = {"max_new_tokens": 20, "do_sample": False, "prefill_chunk_size": 2}
    assert torch.equal(model.generate(IDS, custom_generate=Speculator.from_transformers(model), **options), plain)
