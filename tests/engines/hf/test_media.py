"""Drafts behind prompts with images and sound: the text is that of `generate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from architecture_matrix.catalogue import build
from media_models import PLACEHOLDER, build_media_model
from speculant import Speculator
from speculant.core.errors import UsageError
from speculant.engines.hf.media import MediaPrompt
from speculant.engines.hf.prompt import UnusualPromptError, slices_by_length

pytestmark = pytest.mark.skipif(not slices_by_length(), reason="this release prepares such passes otherwise")
DRAFTED = ("llava", "gemma3", "qwen3_vl", "qwen3_5", "qwen2_audio")


def _generate(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> list[int]:
    torch.manual_seed(1)
    ids: list[int] = model.generate(**inputs, max_new_tokens=24, **options)[0].tolist()
    return ids


def _prepared(speculator: Speculator, inputs: dict[str, torch.Tensor]) -> Any:
    """Return what `generate` prepares of a prompt."""
    options = {name: value for name, value in inputs.items() if name != "input_ids"}
    return speculator.engine.prepare(inputs["input_ids"], max_new_tokens=4, cache=None, options=options)


FURTHER = ("mistral3", "qwen2_vl", "qwen2_5_vl", "glm4v", "internvl", "idefics3", "gemma4", "llama4", "voxtral")


@pytest.mark.parametrize("name", [*DRAFTED, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)])
def test_text_behind_media_is_that_of_generate(name: str) -> None:
    """Guards positions on several axes, windows, states and types of tokens, with trees whose nodes are accepted."""
    model, inputs = build_media_model(name)
    expected = _generate(model, inputs, do_sample=False)
    speculator = Speculator.from_transformers(model, method="mix", nodes=6)
    for _ in range(2):  # the second text is known to the memory
        assert _generate(model, inputs, do_sample=False, custom_generate=speculator) == expected
    assert not speculator.engine.obstacle(_prepared(speculator, inputs)), "decoded plainly"


@pytest.mark.parametrize("name", ["qwen3_vl", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_sampled_text_behind_media(name: str) -> None:
    """Guards sampling: with the same random stream, the text is that of `generate`."""
    model, inputs = build_media_model(name)
    expected = _generate(model, inputs, do_sample=True, temperature=0.8)
    speculator = Speculator.from_transformers(model, method="mix", nodes=6)
    assert _generate(model, inputs, do_sample=True, temperature=0.8, custom_generate=speculator) == expected


def test_text_alone_and_media_share_a_model() -> None:
    """Guards what a family keeps on its modules, such as Qwen's offsets: no request sees those of another."""
    model, inputs = build_media_model("qwen3_vl")
    text = {name: inputs[name][:, :6] for name in ("input_ids", "attention_mask")}
    expected = [_generate(model, each, do_sample=False) for each in (inputs, text, inputs)]
    speculator = Speculator.from_transformers(model, method="mix", nodes=6)
    drafted = [_generate(model, each, do_sample=False, custom_generate=speculator) for each in (inputs, text, inputs)]
    assert drafted == expected


def test_what_cannot_be_drafted_for_is_decoded_plainly() -> None:
    """Guards Mllama without the mask that its processor makes, whose passes see an image by how many rows they have."""
    model, inputs = build_media_model("mllama")
    expected = _generate(model, inputs, do_sample=False)
    speculator = Speculator.from_transformers(model, method="mix")
    assert _generate(model, inputs, do_sample=False, custom_generate=speculator) == expected
    assert speculator.engine.obstacle(_prepared(speculator, inputs))


def test_several_rows_with_media_are_decoded_by_the_model() -> None:
    """Guards batches of `generate`, whose media belong to no single row."""
    model, inputs = build_media_model("llava")
    both = {name: torch.cat([value, value]) for name, value in inputs.items()}
    expected = model.generate(**both, max_new_tokens=12, do_sample=False)
    speculator = Speculator.from_transformers(model, method="mix")
    found = model.generate(**both, max_new_tokens=12, do_sample=False, custom_generate=speculator)
    assert torch.equal(found, expected)


def test_prompts_given_as_embeddings_are_not_taken() -> None:
    """Guards `inputs_embeds`: a prompt of which the tokens are unknown says so."""
    model, inputs = build_media_model("llava")
    speculator = Speculator.from_transformers(model, method="mix")
    call = _prepared(speculator, inputs).own
    call.inputs = call.inputs | {"inputs_embeds": torch.zeros(1, inputs["input_ids"].shape[1], 32)}
    call.ids = call.ids[:, :0]
    with pytest.raises(UnusualPromptError, match="embeddings"):
        MediaPrompt(call)


@pytest.mark.parametrize("name", ["opt", "t5"])
def test_models_that_let_another_write_are_drafted_for(name: str) -> None:
    """Guards BLIP-2's kind, whose `generate` calls that of a decoder or an encoder-decoder within."""
    sizes: dict[str, Any] = {"vocab_size": 128, "eos_token_id": None, "pad_token_id": 0}
    if name == "opt":
        text: Any = transformers.OPTConfig(
            **sizes, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4
        )
        text.update({"word_embed_proj_dim": 32, "bos_token_id": 1})
    else:
        text = transformers.T5Config(
            **sizes, d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4, decoder_start_token_id=0
        )
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Blip2Config(
        vision_config=small | {"image_size": 8, "patch_size": 4},
        qformer_config=small | {"encoder_hidden_size": 32, "vocab_size": 128},
        text_config=text.to_dict(),
        num_query_tokens=4,
        image_token_index=PLACEHOLDER,
    )
    torch.manual_seed(7)
    model = transformers.Blip2ForConditionalGeneration(config).eval()
    ids = torch.tensor([[1, *[PLACEHOLDER] * 4, 9, 17, 33, 9]])
    inputs = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 8, 8), "attention_mask": torch.ones_like(ids)}
    expected = _generate(model, inputs, do_sample=False)
    speculator = Speculator.from_transformers(model, method="mix")
    assert _generate(model, inputs, do_sample=False, custom_generate=speculator) == expected
    assert not speculator.engine.capabilities.refusal
    assert not speculator.engine.obstacle(_prepared(speculator, inputs)), "decoded plainly"
    assert speculator.model is model
    batch = [result.ids for result in speculator.generate_batch([inputs, inputs], size=2, max_new_tokens=24)]
    assert batch == [expected[-24:]] * 2


def test_positions_begin_where_the_class_counts_them_from() -> None:
    """Guards Kosmos-2, whose position ids are entries of a table that begins after the padding."""
    text = {"vocab_size": 128, "embed_dim": 32, "layers": 2, "ffn_dim": 48, "attention_heads": 4}
    config = transformers.Kosmos2Config(
        text_config=text | {"max_position_embeddings": 128, "dropout": 0.0, "eos_token_id": None},
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 8,
            "patch_size": 4,
        },
        latent_query_num=4,
    )
    torch.manual_seed(7)
    model = transformers.Kosmos2ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
    ids = torch.tensor([[0, *[10] * 6, *range(20, 27)]])
    inputs = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 8, 8), "attention_mask": torch.ones_like(ids)}
    inputs["image_embeds_position_mask"] = torch.tensor([[0, 0, 1, 1, 1, 1, *[0] * 8]])
    expected = _generate(model, inputs, do_sample=False)
    speculator = Speculator.from_transformers(model, method="mix")
    assert _generate(model, inputs, do_sample=False, custom_generate=speculator) == expected
    assert speculator.last_stats is not None
    assert speculator.last_stats.mat > 1.2


def test_processors_that_a_class_drops_are_refused() -> None:
    """Guards Janus, whose `generate` passes no processors on: penalties are refused, not ignored."""
    model = build("janus", "sdpa")
    speculator = Speculator.from_transformers(model, method="mix", fast=False)
    with pytest.raises(UsageError, match="passes no logits processors on"):
        speculator.generate([5, 6, 7], max_new_tokens=4, presence_penalty=0.5)
