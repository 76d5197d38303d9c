"""SWIFT's sessions: what a set of layers is scored on, and who shares a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import deep_model
from speculant import Speculator
from speculant.core.errors import ForeignMemoryError, UnsupportedError
from speculant.core.sublayers import Sublayers
from speculant.drafters.layers.memory import LAYER_SEARCH
from speculant.drafters.layers.search import LayerSearch, SearchSettings
from speculant.drafters.layers.swift import SWIFTDrafter
from speculant.memory.file import Memory, read_header
from speculant.registry import BuildContext, build_drafter

SETTINGS: dict[str, Any] = {"window": 6, "bayes_interval": 3, "skip_ratio": 0.5}


ONE, THREE = Sublayers.whole((1,)), Sublayers.whole((3,))


def searching(settings: dict[str, Any]) -> tuple[Any, Speculator, SWIFTDrafter]:
    """Return a model whose layers matter differently, and a speculator that searches."""
    model = deep_model("llama", num_hidden_layers=6)
    with torch.no_grad():
        for index in (1, 4):  # nearly nothing is lost without these
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                model.model.layers[index].get_submodule(name).weight.mul_(0.01)
    speculator = Speculator.from_transformers(model, method="swift", nodes=4, settings=settings, fast=False)
    assert isinstance(speculator.drafter, SWIFTDrafter)
    return model, speculator, speculator.drafter


def test_the_search_finds_layers_that_do_not_matter() -> None:
    """Guards scores: each is the share of generated tokens that the remaining layers predict."""
    _, speculator, drafter = searching(SETTINGS | {"threshold": 0.0})
    result = speculator.generate([5, 9, 14, 3], max_new_tokens=90, temperature=0)
    assert drafter.search.layers == Sublayers.whole((0, 2, 3, 5))
    assert drafter.search.over
    assert result.stats.accepted / result.stats.rounds > 1


def test_scores_are_shares_of_the_generated_text() -> None:
    """Guards the window: the tokens read again are those before the ones that are compared."""
    model, speculator, drafter = searching(SETTINGS | {"enough": 1.0})
    scored = list[tuple[Sublayers, float]]()
    drafter.search.observe = lambda skipped, score: scored.append((skipped, score))  # type: ignore[method-assign]
    drafter.search.candidate = lambda _random: Sublayers((), ())  # type: ignore[method-assign]
    speculator.generate([5, 9, 14, 3], max_new_tokens=30, temperature=0)
    assert len(scored) > 3
    assert {score for _, score in scored} == {1.0}  # all layers predict their own greedy text
    assert model is speculator.model


def test_requests_that_sample_search_for_themselves() -> None:
    """Guards seeds: the layers of earlier requests must not change a sampled text; greedy ones go on with them."""
    _, speculator, drafter = searching(SETTINGS)
    options: dict[str, Any] = {"max_new_tokens": 40, "temperature": 1.0, "seed": 1}
    first = speculator.generate([5, 9, 14, 3], **options).ids
    assert drafter.search._step == 0
    speculator.generate([5, 9, 14, 3], max_new_tokens=40, temperature=0)
    assert drafter.search._step > 0
    assert speculator.generate([5, 9, 14, 3], **options).ids == first


def test_settings_reach_the_search() -> None:
    """Guards the settings' names."""
    drafter = build_drafter("swift", BuildContext(layers=8, settings={"steps": 3}))
    assert isinstance(drafter, SWIFTDrafter)
    assert isinstance(drafter.search, LayerSearch)
    assert drafter.search._settings.steps == 3


def test_a_saved_search_goes_on(tmp_path: Path) -> None:
    """Guards memory files: the same sets are tried as without the pause, and the best one drafts at once."""
    settings = SETTINGS | {"enough": 1.0}
    _, speculator, drafter = searching(settings)
    speculator.generate([5, 9, 14, 3], max_new_tokens=40, temperature=0)
    speculator.save(tmp_path / "search")
    model = speculator.model
    again = Speculator.from_transformers(
        model, method="swift", nodes=4, settings=settings, fast=False, memory=tmp_path / "search"
    )
    held = again.drafter
    assert isinstance(held, SWIFTDrafter)
    assert held.search.layers == drafter.search.layers
    assert held.search._step == drafter.search._step > 0
    random = [np.random.default_rng(1) for _ in range(2)]
    for _ in range(6):
        pairs = list(zip((held.search, drafter.search), random, strict=True))
        one, two = (search.candidate(each) for search, each in pairs)
        assert one == two
        for search, _ in pairs:
            search.observe(one, 0.5)
    print_ = read_header(tmp_path / "search")[0]["tokenizer"]
    other = build_drafter("swift", BuildContext(layers=8, tokenizer=print_))
    assert isinstance(other, SWIFTDrafter)
    with pytest.raises(ForeignMemoryError, match="of 6 layers"):
        other.load(tmp_path / "search")


def test_sublayers_are_searched_and_merged(tmp_path: Path) -> None:
    """Guards the search over attention and MLP: it drafts what it found, and its memory is its own kind of search."""
    model, speculator, drafter = searching(SETTINGS | {"threshold": 0.0, "sublayers": True, "steps": 60})
    plain = speculator.generate([5, 9, 14, 3], max_new_tokens=70, temperature=0)
    greedy = model.generate(torch.tensor([[5, 9, 14, 3]]), max_new_tokens=70, do_sample=False)[0, 4:]
    assert plain.ids == greedy.tolist()
    found = drafter.search.layers
    assert not found.are_whole
    assert len(found.attention) + len(found.mlp) == 8
    arrays, facts = drafter.search.contents()
    memory = Memory(kind="layer-search", tokenizer="t", arrays=arrays, facts=facts)
    merged, sums = LAYER_SEARCH.merge([memory, memory], 1 << 20)
    assert sums["step"] == 2 * facts["step"] > 20
    assert merged["attention"].tolist() == [i for i in range(6) if i not in found.attention]
    assert LAYER_SEARCH.describe(memory)["skipped"] == 4
    assert LAYER_SEARCH.empty(memory)[1]["split"]


def test_searches_are_merged() -> None:
    """Guards the memory kind: scores add up, the best set is kept, and other models are refused."""
    searches, memories = [LayerSearch(6, SearchSettings()) for _ in range(2)], list[Memory]()
    for search, skipped, score in zip(searches, (ONE, THREE), (0.4, 0.7), strict=True):
        search.observe(skipped, score)
        arrays, facts = search.contents()
        memories.append(Memory(kind="layer-search", tokenizer="t", arrays=arrays, facts=facts))
    merged, found = LAYER_SEARCH.merge(memories, 1 << 20)
    assert merged["skipped"].tolist() == [3]
    assert (found["best"], found["step"]) == (0.7, 2)
    both = LayerSearch(6, SearchSettings())
    both.observe(ONE, 0.4)
    both.observe(THREE, 0.7)
    for name in ("precision", "moment"):
        np.testing.assert_allclose(merged[name], both.contents()[0][name])
    assert LAYER_SEARCH.describe(memories[0]) == {"layers": 6, "skipped": 1, "sets scored": 1}
    assert LAYER_SEARCH.empty(memories[0])[1]["step"] == 0
    arrays, facts = LayerSearch(8, SearchSettings()).contents()
    other = Memory(kind="layer-search", tokenizer="t", arrays=arrays, facts=facts)
    with pytest.raises(UnsupportedError, match="different models"):
        LAYER_SEARCH.merge([memories[0], other], 1 << 20)
    with pytest.raises(UnsupportedError, match="memory limit"):
        LAYER_SEARCH.merge(memories, 10)
