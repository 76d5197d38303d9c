"""What users run on a hybrid model: heads that read hidden states, layers left out, adapters, the server's batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from architecture_matrix.catalogue import build
from architecture_matrix.compare import Guesses
from pairwise import every_other
from passes import IDS, plain_text
from speculant import Speculator
from speculant.core.engine import RequestedOutputs
from speculant.engines.hf.states.layers import LinearAttentionLayer

if not hasattr(LinearAttentionLayer, "update_conv_state"):
    pytest.skip("this release of transformers keeps states in classes of each model's own", allow_module_level=True)

PROMPT = IDS[0].tolist()
OPTIONS: dict[str, Any] = {"max_new_tokens": 14, "temperature": 0}


class Reading(Guesses):
    """Good guesses, of a drafter that asks for hidden states of layers and the prompt's as a head does."""

    @property
    def needs(self) -> RequestedOutputs:
        return RequestedOutputs(hidden_layers=(0, -1), prompt=True, top_k=3)


LAYERED = ["qwen3_5_text", "lfm2", "mamba2", "recurrent_gemma", "minimax"]


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *every_other(((name, "layer-skip") for name in LAYERED), first=True),
        ("qwen3_5_text", "swift"),
        ("recurrent_gemma", "swift"),
        ("mamba2", "lookahead"),
        *(pytest.param(name, "swift", marks=pytest.mark.slow) for name in ("lfm2", "mamba2", "minimax")),
        *(pytest.param(name, "lookahead", marks=pytest.mark.slow) for name in LAYERED if name != "mamba2"),
    ],
)
def test_layers_left_out(name: str, method: str) -> None:
    """Guards self-drafting: rows of some layers are recorded in those, and dropped."""
    model = build(name, "eager")
    speculator = Speculator.from_transformers(model, method=method, nodes=6, fast=False)
    result = speculator.generate(PROMPT, **OPTIONS)
    assert speculator.method == method
    assert result.ids == plain_text(model, IDS, 14)
    assert result.stats.drafted > 0


@pytest.mark.parametrize("name", ["qwen3_5_text", "jamba", "recurrent_gemma", "minimax"])
def test_hidden_states_of_layers(name: str) -> None:
    """Guards heads: taps on layers whose mixers are views, alone and in a batch."""
    model = build(name, "eager")
    expected = plain_text(model, IDS, 14)
    speculator = Speculator.from_transformers(model, method="none", nodes=6, fast=False)
    speculator.drafter = Reading({tuple(PROMPT): expected})
    result = speculator.generate(PROMPT, **OPTIONS)
    assert result.ids == expected
    assert result.stats.accepted > 3
    assert [each.ids for each in speculator.generate_batch([PROMPT] * 2, **OPTIONS)] == [expected] * 2


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_adapters_and_hooks_on_mixers() -> None:
    """Guards LoRA inside a mixer and hooks of the mixer itself: the view has them, too."""
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(
        build("qwen3_5_text", "eager"),
        peft.LoraConfig(target_modules=["in_proj_qkv", "out_proj", "in_proj_z"], r=4, init_lora_weights=False),
    ).eval()
    hooked = build("qwen3_5_text", "eager")
    hooked.model.layers[0].linear_attn.register_forward_hook(lambda _, __, output: output * 1.5)
    for model in (adapted, hooked):
        settings = {"attention_mask": torch.ones_like(IDS), "max_new_tokens": 14, "do_sample": False}
        expected = model.generate(input_ids=IDS, **settings)[0, 12:].tolist()
        speculator = Speculator.from_transformers(model, method="none", nodes=6, fast=False)
        speculator.drafter = Guesses({tuple(PROMPT): expected})
        result = speculator.generate(PROMPT, **OPTIONS)
        assert result.ids == expected
        assert result.stats.accepted > 3
    assert expected != plain_text(build("qwen3_5_text", "eager"), IDS, 14)


@pytest.mark.parametrize("name", ["lfm2", "recurrent_gemma", pytest.param("minimax", marks=pytest.mark.slow)])
def test_padded_rows_of_one_call(name: str) -> None:
    """Guards `model.generate(custom_generate=...)` on rows of different lengths."""
    model = build(name, "eager")
    rows = torch.cat([IDS, torch.cat([torch.zeros(1, 5, dtype=torch.long), IDS[:, 5:]], dim=1)])
    mask = (torch.arange(12) >= torch.tensor([[0], [5]])).long()
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    speculator = Speculator.from_transformers(model, method="recycling", nodes=6, fast=False)
    assert torch.equal(model.generate(rows, custom_generate=speculator, **options), model.generate(rows, **options))


def test_kernels_beside_states() -> None:
    """Guards `fast`: packed linear layers inside mixers leave the text as it is."""
    model = build("qwen3_5_text", "eager")
    expected = plain_text(model, IDS, 14)
    speculator = Speculator.from_transformers(model, method="none", nodes=6, fast=True)
    speculator.drafter = Guesses({tuple(PROMPT): expected})
    assert speculator.generate(PROMPT, **OPTIONS).ids == expected


def test_subsets_of_layers_and_searches() -> None:
    """Guards layers left out below the first that attends, and searches that would read tokens again."""
    model = build("olmo_hybrid", "eager")
    expected = plain_text(model, IDS, 18)
    for method, settings in (("early-exit", None), ("swift", {"window": 4, "interval": 2})):
        speculator = Speculator.from_transformers(model, method=method, nodes=4, settings=settings, fast=False)
        assert speculator.generate(PROMPT, temperature=0, max_new_tokens=18).ids == expected


def test_types_of_tokens_that_are_all_text() -> None:
    """Guards processors of multimodal models, which say that a text is one: it is drafted for."""
    model = build("qwen3_5 (media)", "eager")
    expected = plain_text(model, IDS, 14)
    speculator = Speculator.from_transformers(model, method="none", nodes=6, fast=False)
    speculator.drafter = Guesses({tuple(PROMPT): expected})
    given = {"attention_mask": torch.ones_like(IDS), "mm_token_type_ids": torch.zeros_like(IDS)}
    text = model.generate(IDS, custom_generate=speculator, max_new_tokens=14, do_sample=False, **given)
    assert text[0, 12:].tolist() == expected
    assert speculator.last_stats is not None
    assert speculator.last_stats.accepted > 3
