"""Models with quantised weights, end to end: drafts, batches and heads leave the text of plain decoding as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heads import random_head
from models import endless, perturbed, tiny_model
from quantizing import quantized_model
from speculant import PrefixCache, Speculator
from speculant.engines.hf.cpu.build import BuildError
from speculant.engines.hf.quantized.products import native

IDS = [5, 9, 14, 3, 8, 5, 9, 14, 3, 8, 5, 9]
PROMPTS = [IDS, [3, 3, 8, 9], [(7 * place) % 50 + 5 for place in range(56)]]
GREEDY: dict[str, Any] = {"temperature": 0}
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 11}


@pytest.fixture(autouse=True)
def compiled() -> None:
    """Skip where the code cannot be built."""
    try:
        native()
    except BuildError as error:
        pytest.skip(str(error))


def texts(speculator: Speculator, prompts: list[list[int]] = PROMPTS, **options: Any) -> list[list[int]]:
    """Return the new tokens of each prompt, decoded alone; seeds count up, as in a batch."""
    seed = options.pop("seed", 0)
    return [
        speculator.generate(prompt, **{"max_new_tokens": 14, "seed": seed + place} | options).ids
        for place, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    ("name", "bits", "dtype", "fast"),
    [
        ("qwen2", 8, torch.float32, None),
        ("llama", 4, torch.float32, None),
        ("qwen3", 8, torch.bfloat16, None),
        ("llama", 8, torch.float32, False),
    ],
)
def test_drafts_change_no_token(name: str, bits: int, dtype: torch.dtype, fast: bool | None) -> None:
    """Guards chains and trees, greedy and sampled, alone and in a batch, over the edges of the attention's blocks."""
    model = quantized_model(endless(name), bits=bits).to(dtype)
    plain = Speculator.from_transformers(model, method="none", fast=fast)
    for options in (GREEDY, SAMPLED):
        expected = texts(plain, **options)
        for method, nodes in (("lookup", 6), ("recycling", 24)):
            drafted = Speculator.from_transformers(model, method=method, nodes=nodes, fast=fast)
            assert texts(drafted, **options) == expected
        together = drafted.generate_batch(PROMPTS, max_new_tokens=14, **options)
        assert [each.ids for each in together] == expected


@pytest.mark.parametrize(
    ("method", "kind"),
    [("eagle2", "eagle"), ("eagle3", "eagle3"), ("mtp", "mtp"), ("medusa", "medusa"), ("dflash", "dflash")],
)
def test_heads_draft_on_quantised_targets(method: str, kind: str) -> None:
    """Guards heads that read the target's embeddings and output projection, whose weights are packed."""
    model = quantized_model(endless("llama"))
    drafted = Speculator.from_transformers(model, method=method, head=random_head(model, kind))
    assert texts(drafted, PROMPTS[:2], max_new_tokens=14, **GREEDY) == texts(
        Speculator.from_transformers(model, method="none"), PROMPTS[:2], max_new_tokens=14, **GREEDY
    )


@pytest.mark.parametrize("quantised_draft", [True, False])
def test_draft_models_may_be_quantised(quantised_draft: bool) -> None:
    """Guards pairs: a quantised draft model for its target, and a float one for a quantised target."""
    source = endless("llama")
    model, draft = quantized_model(source), perturbed(tiny_model("llama"), 0.02)
    draft = quantized_model(draft, bits=4) if quantised_draft else draft
    drafted = Speculator.from_transformers(model, method="draft-model", draft_model=draft)
    results = [drafted.generate(prompt, max_new_tokens=40, **GREEDY) for prompt in PROMPTS]
    assert [each.ids for each in results] == texts(
        Speculator.from_transformers(model, method="none"), max_new_tokens=40, **GREEDY
    )
    assert sum(each.stats.rounds for each in results) < 120  # some drafts were accepted


def test_prompts_that_begin_alike_are_read_once() -> None:
    """Guards the prefix cache: copied rows are, to the last bit, those that would be computed."""
    model = quantized_model(endless("qwen2"))
    speculator, prefixes = Speculator.from_transformers(model, method="lookup"), PrefixCache("1GB")
    prompts = [[*PROMPTS[2], 9, 14], [*PROMPTS[2][:30], 8], [*PROMPTS[2], 3]]
    expected = texts(speculator, prompts, max_new_tokens=40, **SAMPLED)
    with speculator.batch(2, prefix_cache=prefixes) as batch:
        given = [batch.add(each, max_new_tokens=40, **SAMPLED | {"seed": 11 + i}) for i, each in enumerate(prompts)]
        assert [result.ids for result in batch.run(given)] == expected
    assert prefixes.stats.hits >= 1


def test_the_bundled_model_at_8_bits() -> None:
    """Guards a trained model, with the memory and with its head: real prompts, greedy and sampled."""
    float_model = Speculator.from_pretrained(method="none")
    model = quantized_model(float_model.model.float())
    plain = Speculator.from_transformers(model, float_model.tokenizer, method="none")
    prompts = ["Once upon a time, there was a little girl", "Tom had a red ball. He"]
    both: list[dict[str, Any]] = [GREEDY, {"temperature": 0.8, "seed": 1}]
    expected = [[plain.generate(each, max_new_tokens=40, **given).ids for given in both] for each in prompts]
    for options in ({"method": "mix"}, {"method": "mix-head", "head": "bundled"}):
        drafted = Speculator.from_transformers(model, float_model.tokenizer, **options)
        rounds = tokens = 0
        for prompt, own in zip(prompts, expected, strict=True):
            for given, text in zip(both, own, strict=True):
                result = drafted.generate(prompt, max_new_tokens=40, **given)
                assert result.ids == text
                rounds, tokens = rounds + result.stats.rounds, tokens + result.stats.tokens
        assert rounds < tokens
