"""Heads where something is unusual: the end of the context, settings that leave one token, weights that are wrong."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from block_heads import random_weights
from heads import NAMES, SINGLE, begun, random_head
from models import endless, tiny_model
from pairwise import every_other, in_turn
from speculant import Speculator
from speculant.api.draft_caches import open_draft_caches
from speculant.core.drafter import Budget
from speculant.core.sampler import Sampling
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.memory_union import UnionHeadDrafter
from speculant.drafters.heads.pard.head import PardHead
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.registry import BuildContext, build_drafter

SMALL = 7  # tokens
PROMPT = [5, 3, 4, 3, 6]
TOKENS = 8
ENDLESS: dict[str, Any] = {"max_new_tokens": TOKENS, "eos_token_id": None}
GREEDY = ENDLESS | {"temperature": 0}


@pytest.fixture(scope="module")
def model() -> Any:
    """A target of few tokens."""
    return endless("llama", vocab_size=SMALL, num_hidden_layers=2)


def plain(model: Any, prompt: list[int] = PROMPT, **options: Any) -> list[int]:
    """Return what the target generates without drafts."""
    return _plain(model, tuple(prompt), tuple(options.items()))


@cache
def _plain(model: Any, prompt: tuple[int, ...], options: tuple[tuple[str, Any], ...]) -> list[int]:
    speculator = Speculator.from_transformers(model, method="none", fast=False)
    return speculator.generate(list(prompt), **dict(options)).ids


def drafting(model: Any, method: str, head: Any, **options: Any) -> Speculator:
    """Return a speculator with a head; a name is a random one."""
    head = random_head(model, head) if isinstance(head, str) else head
    return Speculator.from_transformers(model, method=method, head=head, fast=False, **{"nodes": 6} | options)


@pytest.fixture(scope="module")
def short_model() -> Any:
    """A target with positions for the prompt and the text after it alone."""
    return endless("llama", vocab_size=SMALL, num_hidden_layers=1, max_position_embeddings=len(PROMPT) + TOKENS)


@pytest.mark.parametrize(("method", "name"), every_other(SINGLE, first=True))
def test_drafts_end_at_the_targets_last_position(method: str, name: str, short_model: Any) -> None:
    """Guards the end of the context, which drafts and blocks of masks must not pass."""
    assert drafting(short_model, method, name).generate(PROMPT, **GREEDY).ids == plain(short_model, **GREEDY)


@pytest.mark.parametrize(
    ("method", "name", "options"),
    in_turn(SINGLE, [{"temperature": 1e-6}, {"temperature": 1.0, "top_k": 1}], every=2, skip=1),
)
def test_sampling_that_leaves_one_token(method: str, name: str, options: dict[str, Any], model: Any) -> None:
    """Guards p and q of one token: drawn drafts, rejected ones too, leave the greedy text."""
    speculator = drafting(model, method, name, verifier="speculative-sampling")
    assert speculator.generate(PROMPT, **ENDLESS | options).ids == plain(model, **GREEDY)


@pytest.mark.parametrize(
    ("method", "name", "options"),
    in_turn(SINGLE, [GREEDY | {"repetition_penalty": 1.3}, ENDLESS | {"temperature": 1.2, "seed": 4}], every=2),
)
def test_processors_and_stops(method: str, name: str, options: dict[str, Any], model: Any) -> None:
    """Guards processors that read the text, and an end inside a draft, greedy and by seed."""
    text = plain(model, **options)
    speculator = drafting(model, method, name)
    assert speculator.generate(PROMPT, **options).ids == text
    ending = options | {"eos_token_id": text[TOKENS // 2]}
    assert speculator.generate(PROMPT, **ending).ids == plain(model, **ending)


@pytest.mark.parametrize(("method", "name"), SINGLE)
def test_without_a_budget_nothing_is_drafted(method: str, name: str, model: Any) -> None:
    """Guards rounds without a draft: the session drafts afterwards what it would have drafted before."""
    drafter = build_drafter(method, BuildContext(vocabulary=SMALL, head=random_head(model, name), sampled=True))
    _, start, prompt = begun(drafter.needs, model, PROMPT, sampling=Sampling(temperature=1.0))
    session = drafter.open(start)
    session.observe(prompt)
    whole = Budget(nodes=3, depth=3)
    first = session.propose(whole)
    for nothing in (Budget(nodes=0, depth=3), Budget(nodes=3, depth=0)):
        assert len(session.propose(nothing)) == 0
    assert len(first)
    np.testing.assert_array_equal(session.propose(whole).tokens, first.tokens)


@pytest.mark.parametrize(
    ("method", "name", "value"),
    in_turn([pair for pair in SINGLE if pair[1] != "pard"], [float("nan"), float("inf")], every=2, skip=1),
)
def test_weights_that_are_no_numbers(
    method: str, name: str, value: float, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards damaged heads: they cost speed, never text, greedy and sampled, and are reported once a request."""
    loaded = random_head(model, name)
    assert isinstance(loaded.head, nn.Module)
    with torch.no_grad():
        [weight.fill_(value) for weight in loaded.head.parameters()]
    check_damaged(model, method, loaded, caplog)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_damaged_parallel_model(value: float, model: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Guards the same of a model that drafts."""
    draft = tiny_model("llama", vocab_size=SMALL)
    with torch.no_grad():
        draft.lm_head.weight.fill_(value)
    check_damaged(model, "pard", pard_of(draft, model), caplog)


def check_damaged(model: Any, method: str, head: LoadedHead, caplog: pytest.LogCaptureFixture) -> None:
    """Check that such a head changes no text, and what is logged."""
    speculator = drafting(model, method, head)
    with caplog.at_level(logging.WARNING):
        assert speculator.generate(PROMPT, **GREEDY).ids == plain(model, **GREEDY)
    message = "the drafter returned NaN logits; its drafts cost time and gain nothing."
    expected = (
        [] if method == "pass" else [message]
    )  # its embeddings are mended, since the target's own cache holds them
    assert [record.message for record in caplog.records] == expected
    if isinstance(speculator.drafter, UnionHeadDrafter):
        assert np.isfinite(speculator.drafter._mixture._weights).all()
    sampled = drafting(model, method, head, verifier="speculative-sampling")
    assert len(sampled.generate(PROMPT, **ENDLESS | {"temperature": 1.0, "seed": 1}).ids) == TOKENS


def pard_of(draft: Any, model: Any) -> LoadedHead:
    """Return a model with a mask token as a head of a target, whose vocabularies and positions may differ."""
    known, target = draft.config.vocab_size, HFTargetParts(model)
    caches = open_draft_caches(draft, known)
    head = PardHead(caches, 1, vocabulary=known, target_vocabulary=target.vocabulary, tokens=3)
    return LoadedHead(head, target, "pard", "pard")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"vocab_size": SMALL - 2}),
        ("llama", {"vocab_size": SMALL + 9}),
        ("llama", {"max_position_embeddings": 9}),
        ("gpt2", {"max_position_embeddings": 9}),
    ],
)
@pytest.mark.parametrize("prompt", [PROMPT, PROMPT * 3], ids=["short", "long"])
def test_parallel_models_of_another_size(name: str, changes: dict[str, int], prompt: list[int], model: Any) -> None:
    """Guards models with fewer or more tokens than the target, and with positions for less than the text."""
    head = pard_of(tiny_model(name, **{"vocab_size": SMALL} | changes), model)
    assert drafting(model, "pard", head).generate(prompt, **GREEDY).ids == plain(model, prompt, **GREEDY)
    sampled = drafting(model, "pard", head, verifier="speculative-sampling")
    assert len(sampled.generate(prompt, **ENDLESS | {"temperature": 1.0, "seed": 1}).ids) == TOKENS


@pytest.mark.parametrize("name", every_other([name for name in NAMES if name != "pard"], first=True))
def test_weights_that_change_while_it_drafts(name: str, model: Any) -> None:
    """Guards online distillation of every kind: weights are replaced between rounds, and the text is the target's."""
    loaded = random_head(model, name)
    module: Any = loaded.head
    for options in (GREEDY, ENDLESS | {"temperature": 1.2, "seed": 4}):
        stream = drafting(model, loaded.method, loaded).stream(PROMPT, **options)
        for seed, _ in enumerate(stream):
            random_weights(module, seed)
        assert stream.result.ids == plain(model, **options)
