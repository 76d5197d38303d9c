"""Texts drafted by heads of feed-forward blocks are the target's own, whatever the heads predict."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from feed_forward_heads import heads, new_medusa
from models import tiny_model
from pairwise import in_turn
from speculant import Speculator
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.drafter import LoadedHead
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.registry import METHODS

NAMES = tuple(heads())
PROMPTS = [[5, 7, 9, 11, 13], [8, 3], [20, 21, 22, 23, 24, 25, 26, 27], [40, 4, 41]]


def loaded(name: str, model: Any) -> LoadedHead:
    """Return one of the heads on a model."""
    kind = name.split("-")[0].removesuffix("++")
    return LoadedHead(heads()[name], HFTargetParts(model), kind, kind)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> Any:
    """A target of every head."""
    return tiny_model("llama")


def plain(model: Any, prompt: list[int], count: int) -> list[int]:
    """Return what the model generates alone."""
    return _plain(model, tuple(prompt), count)


@cache
def _plain(model: Any, prompt: tuple[int, ...], count: int) -> list[int]:
    text: list[int] = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)[0].tolist()
    return text[len(prompt) :]


PUBLISHED = [name for name in NAMES if name.startswith(("medusa", "hyd"))]  # with a static tree


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        *in_turn(PUBLISHED, ["dynamic", "chain", "static"]),
        *in_turn(sorted({*NAMES} - {*PUBLISHED}), ["dynamic", "chain"]),
    ],
)
def test_greedy_text_is_the_targets_own(name: str, tree: str, model: Any) -> None:
    """Guards trees and chains of every kind, two turns with the kept cache, and a batch of several texts."""
    speculator = Speculator.from_transformers(model, head=loaded(name, model), nodes=10, settings={"tree": tree})
    assert speculator.method.split(":")[0] == name.split("-")[0].removesuffix("++")
    first = speculator.generate(PROMPTS[0], max_new_tokens=16, temperature=0)
    assert list(first.ids) == plain(model, PROMPTS[0], 16)
    assert first.stats.drafted > 0
    longer = [*PROMPTS[0], *first.ids, 3, 4]
    second = speculator.generate(longer, max_new_tokens=10, temperature=0, cache=first.cache)
    assert list(second.ids) == plain(model, longer, 10)
    batch = speculator.batch(3)
    generations = [batch.add(prompt, max_new_tokens=10, temperature=0) for prompt in PROMPTS]
    for _ in batch:
        pass
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        assert list(generation.result.ids) == plain(model, prompt, 10)


@pytest.mark.parametrize(("architecture", "name"), in_turn(["mistral", "gemma3", "gpt2"], ["medusa", "hydra++", "mlp"]))
def test_other_targets(architecture: str, name: str) -> None:
    """Guards sliding windows, other norms and scaled embeddings."""
    model = tiny_model(architecture)
    speculator = Speculator.from_transformers(model, head=loaded(name, model), nodes=6)
    assert list(speculator.generate(PROMPTS[2], max_new_tokens=16, temperature=0).ids) == plain(model, PROMPTS[2], 16)


@pytest.mark.parametrize("name", ["medusa", "hydra++", "mlp-tied", "blockwise"])
def test_bf16_heads_draft(name: str) -> None:
    """Guards dtypes: head and target in bf16, its norms and rotary angles included."""
    model = tiny_model("llama").to(torch.bfloat16)
    head = loaded(name, model)
    head.head.to(torch.bfloat16)  # type: ignore[attr-defined]
    result = Speculator.from_transformers(model, head=head, nodes=6).generate(
        PROMPTS[0], max_new_tokens=10, temperature=0
    )
    assert len(result.ids) == 10
    assert result.stats.drafted > 0


@pytest.mark.parametrize(("name", "verifier"), in_turn(NAMES, [None, "speculative-sampling", "traversal"]))
def test_sampled_text(name: str, verifier: str | None, model: Any) -> None:
    """Guards chains drawn from the heads' probabilities, and that the default rule reproduces plain sampling."""
    kwargs = {} if verifier is None else {"verifier": verifier}
    speculator = Speculator.from_transformers(model, head=loaded(name, model), nodes=6, **kwargs)
    result = speculator.generate(PROMPTS[0], max_new_tokens=16, temperature=0.9, seed=4)
    assert len(result.ids) == 16 or result.ids[-1] == 2
    if verifier is None:
        alone = Speculator.from_transformers(model, method="none")
        assert result.ids == alone.generate(PROMPTS[0], max_new_tokens=16, temperature=0.9, seed=4).ids


def test_an_oracle_is_accepted_as_deep_as_it_has_heads() -> None:
    """Guards the pairing of heads and places: where the target counts, heads that count on are always accepted."""
    model = tiny_model("llama")
    following = [3 + (token - 2) % 29 for token in range(32)]  # of tokens 3 to 31; the others are not used
    onward = torch.eye(32)
    projections = []
    for _ in range(4):
        onward = onward[:, following]  # row of a token, column of the one that is so many places before it
        projections.append(onward)
    head = new_medusa(projection="own", heads=3)
    with torch.no_grad():
        for parameter in (*head.parameters(), model.lm_head.weight, model.model.embed_tokens.weight):
            parameter.zero_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight[:32] = torch.eye(32)
        model.lm_head.weight[:32] = projections[0]
        for index in range(3):
            head.state_dict()[f"{index}.2.weight"][:32] = projections[index + 1]
    speculator = Speculator.from_transformers(
        model, head=LoadedHead(head, HFTargetParts(model), "medusa", "medusa"), nodes=3, settings={"tree": "chain"}
    )
    result = speculator.generate([5, 6, 7], max_new_tokens=41, temperature=0)
    assert list(result.ids[:4]) == [8, 9, 10, 11]
    assert result.stats.mat == 4.0


def test_typical_acceptance_is_medusas_by_name() -> None:
    """Guards the authors' lossy rule: refused by default, used on request, and deterministic at temperature 0."""
    model = tiny_model("llama")
    head = loaded("medusa", model)
    assert {"typical", "nucleus", "greedy"} <= set(METHODS["medusa"].verifiers)
    with pytest.raises(UnsupportedError, match="lossy"):
        Speculator.from_transformers(model, head=head, verifier="typical")
    speculator = Speculator.from_transformers(
        model, head=head, verifier="typical:epsilon=0.001,delta=0.001", lossy=True, nodes=8
    )
    texts = [speculator.generate(PROMPTS[0], max_new_tokens=30, temperature=0.8, seed=4) for _ in range(2)]
    assert texts[0].ids == texts[1].ids
    assert texts[0].stats.mat > 1.5
