"""Passes that go on from the rows of the first layers give what passes of all layers give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import deep_model
from pairwise import paired
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UsageError
from speculant.engines.hf.engine import HFEngine

PROMPT = torch.tensor([[5, 9, 14, 7, 21, 30]])
FAMILIES = ("llama", "qwen3", "gemma3", "gpt2")


def opened(name: str, **changes: Any) -> tuple[HFEngine, Any]:
    """Return an engine and a cache whose prompt is read."""
    engine = HFEngine(deep_model(name, **changes))
    cache = engine.open(PROMPT)
    cache.prefill()
    return engine, cache


def rows(tokens: list[int], parents: list[int]) -> tuple[Any, Any]:
    return np.array(tokens, np.int32), np.array(parents, np.int32)


TREE = rows([8, 11, 12, 13, 17], [-1, 0, 1, 1, 2])


@pytest.mark.parametrize(("name", "layers", "read"), paired([*FAMILIES], [1, 2], [1, 3, 5]))
def test_passes_go_on(name: str, layers: int, read: int) -> None:
    """Guards trees and rows that were not drafted on: logits, kept rows and the next pass are those of whole passes."""
    _, cache = opened(name)
    _, other = opened(name)
    tokens, parents = TREE
    cache.read_exit(tokens[:1], parents[:1], layers)
    if read > 1:
        cache.read_exit(tokens[1:read], parents[1:read], layers)
    assert cache.uncommitted == 0
    torch.testing.assert_close(cache.forward(tokens, parents).logits, other.forward(tokens, parents).logits)
    for each in (cache, other):
        each.keep([0, 1, 2])
    torch.testing.assert_close(cache.forward(*rows([4], [-1])).logits, other.forward(*rows([4], [-1])).logits)


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "llama"])
def test_a_single_row_goes_on_with_eager_attention(name: str) -> None:
    """Guards masks that transformers would make by the first layer, which has the row already."""
    (_, cache), (_, other) = (opened(name, attention="eager") for _ in range(2))
    cache.read_exit(*rows([8], [-1]), 1)
    torch.testing.assert_close(cache.forward(*rows([8], [-1])).logits, other.forward(*rows([8], [-1])).logits)


def test_what_was_run_early() -> None:
    """Guards what sizes are chosen by: the share of a pass that drafting has run, by weights; none if a row was not."""
    _, cache = opened("llama")
    model, (tokens, parents) = cache._runner.model, TREE
    layers = [sum(each.numel() for each in layer.parameters()) for layer in model.model.layers]
    share = layers[0] / (sum(layers) + model.lm_head.weight.numel())
    for read, expected in ((5, share), (4, 0.0), (0, 0.0)):
        if read:
            cache.read_exit(tokens[:read], parents[:read], 1)
        assert cache.forward(tokens, parents).early == pytest.approx(expected)
        cache.rollback()


@pytest.mark.parametrize("name", FAMILIES)
def test_other_drafts_share_what_they_can(name: str) -> None:
    """Guards drafts that were trimmed or changed: rows that differ are dropped, whatever comes first."""
    _, cache = opened(name)
    _, other = opened(name)
    tokens, parents = TREE
    for given in (rows([8, 11, 25], [-1, 0, 1]), rows([8], [-1]), rows([9, 11], [-1, 0])):
        cache.read_exit(tokens, parents, 1)
        torch.testing.assert_close(cache.forward(*given).logits, other.forward(*given).logits)
        cache.rollback()
        other.rollback()


def test_hidden_states_of_passes_that_go_on() -> None:
    """Guards taps: the exit's own layer and those behind it; where one before is wanted, all layers run."""
    _, cache = opened("llama")
    _, other = opened("llama")
    for taps in ((1, -1), (0, 2)):
        needs = RequestedOutputs(hidden_layers=taps)
        cache.read_exit(*TREE, 2)
        found, expected = cache.forward(*TREE, needs=needs), other.forward(*TREE, needs=needs)
        torch.testing.assert_close(found.hidden, expected.hidden)
        cache.rollback()
        other.rollback()


def test_logits_of_the_exit() -> None:
    """Guards early-exit: those of a pass that leaves out the other layers."""
    for name in FAMILIES:
        _, cache = opened(name)
        found = cache.read_exit(*TREE, 2, logits=True).logits
        cache.drop_exit()
        torch.testing.assert_close(found, cache.forward(*TREE, layers=(0, 1)).logits)


def test_what_comes_between() -> None:
    """Guards checks of the engine, batches and interrupts: nothing of the waiting rows is left behind."""
    _, cache = opened("llama")
    _, other = opened("llama")
    tokens, parents = TREE
    cache.read_exit(tokens, parents, 2)
    expected = other.forward(tokens, parents).logits
    other.rollback()
    torch.testing.assert_close(cache.plain_logits([8, 11]), expected[:2])
    torch.testing.assert_close(cache.forward(tokens, parents).logits, expected)  # they still waited
    cache.rollback()
    cache.read_exit(tokens, parents, 2)
    cache.plan(tokens, parents)  # as a pass of several sequences does
    assert cache.cache.get_seq_length() == cache.length
    cache.read_exit(tokens, parents, 2)
    cache.rollback()
    assert cache.cache.get_seq_length() == cache.length
    cache.forward(tokens[:1], parents[:1])
    with pytest.raises(UsageError, match="neither kept nor dropped"):
        cache.read_exit(tokens, parents, 2)


def test_a_view_and_the_layers_alone_agree() -> None:
    """Guards the short way of the Llama family against the model's own forward; hooks are not passed by."""
    _, cache = opened("llama")
    model = cache._runner.model
    short = cache.read_exit(*TREE, 2).hidden
    assert cache._waiting.passes._is_direct(cache.rows_input(np.array([8]), np.array([6]), None))
    cache.rollback()
    seen: list[int] = []
    hook = model.model.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(cache.read_exit(*TREE, 2).hidden, short)
    hook.remove()
    assert seen
