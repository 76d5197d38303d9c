"""Passes through some of the decoder layers, against models that have only those."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models import deep_model, truncated
from pairwise import in_turn, paired
from passes import IDS, opened, plain_text, rows_of
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sublayers import Sublayers
from speculant.core.tree import DraftTree
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.views.layer_parts import find_layer_parts, whole_layers_reason
from speculant.engines.hf.views.model_view import find_layers
from trees import random_draft


@pytest.mark.parametrize(
    ("name", "attention", "layers"),
    paired(
        ["llama", "gemma3", "mistral", "gpt2", "phi3", "gpt_neox", "mixtral"],
        ["sdpa", "eager"],
        [[0], [0, 1], [0, 1, 2]],
    ),
)
def test_the_first_layers_are_a_shallower_model(name: str, attention: str, layers: list[int]) -> None:
    """Guards early exit: the norm and the head follow the last layer that runs, on the target's own cache."""
    model = deep_model(name, attention)
    engine, shallow = HFEngine(model), truncated(model, layers)
    cache, tree = opened(engine), random_draft(np.random.default_rng(2), 7, 61)
    tokens, parents = rows_of(7, tree)
    pieces = [
        cache.forward(tokens[i : i + 3], parents[i : i + 3], layers=layers, needs=RequestedOutputs(hidden_layers=(-1,)))
        for i in range(0, len(tokens), 3)
    ]
    other = HFEngine(shallow)
    [expected] = other.forward([(opened(other), 7, tree)], RequestedOutputs(hidden_layers=(-1,)))
    torch.testing.assert_close(torch.cat([each.logits for each in pieces]), expected.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.cat([each.hidden for each in pieces]), expected.hidden, atol=1e-3, rtol=1e-3)
    cache.rollback()
    [whole] = engine.forward([(cache, 7, tree)])
    cache.rollback()
    [again] = engine.forward([(cache, 7, tree)])
    torch.testing.assert_close(again.logits, whole.logits)
    assert {layer.get_seq_length() for layer in cache.cache.layers} == {len(tokens) + 12}


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_layers_in_the_middle_are_left_out(name: str) -> None:
    """Guards layer skipping: a left-out layer hands on its input, and others keep their places in the cache."""
    model = deep_model(name)
    engine = HFEngine(model)
    cache, ids = opened(engine), torch.tensor([[*IDS[0].tolist(), 7]])
    result = cache.forward(np.array([7], np.int32), np.array([-1], np.int32), layers=[1, 2])
    assert [layer.get_seq_length() for layer in cache.cache.layers] == [12, 13, 13]
    place = find_layers(model)
    assert place is not None
    reference = HFEngine(model).open(ids[:, :12])
    reference.prefill()
    first, position = place.layers[0], torch.tensor([[12]])

    def unchanged(_module: nn.Module, given: Any, output: Any) -> Any:
        return (given[0], *output[1:]) if isinstance(output, tuple) else given[0]

    handle = first.register_forward_hook(unchanged)
    with torch.no_grad():
        expected = model(ids[:, 12:], past_key_values=reference.cache, position_ids=position, use_cache=True)
    handle.remove()
    torch.testing.assert_close(result.logits, expected.logits[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "fast"),
    in_turn(["llama", "mistral", "gemma3", "gpt2", "phi3", "gpt_neox", "mixtral"], [True, False], whole=1),
)
def test_attention_and_mlp_are_left_out_separately(name: str, fast: bool) -> None:
    """Guards split layers: what is left out adds nothing, and rows have keys where attention ran."""
    model, run = deep_model(name), Sublayers((0, 2), (1, 2))
    cache = opened(HFEngine(model, acceleration=prepare_model(model, fast)))
    tokens, parents = np.array([7, 9, 11], np.int32), np.array([-1, 0, 1], np.int32)
    needs = RequestedOutputs(hidden_layers=(1,))
    pieces = [cache.forward(tokens[i : i + 2], parents[i : i + 2], layers=run, needs=needs) for i in (0, 2)]
    assert [layer.get_seq_length() for layer in cache.cache.layers] == [15, 12, 15]
    reference = HFEngine(model).open(torch.cat([IDS, torch.tensor([[7]])], dim=1)[:, :12])
    reference.prefill()

    def silent(_module: nn.Module, _given: Any, output: Any) -> Any:
        return (output[0] * 0, *output[1:]) if isinstance(output, tuple) else output * 0

    place, parts = find_layers(model), find_layer_parts(model)
    assert place is not None
    left_out = [getattr(place.layers[0], parts[0].names["mlp"]), getattr(place.layers[1], parts[1].names["attention"])]
    handles = [each.register_forward_hook(silent) for each in left_out]
    with torch.no_grad():
        expected = model(
            torch.from_numpy(tokens.astype(np.int64))[None],
            past_key_values=reference.cache,
            position_ids=torch.tensor([[12, 13, 14]]),
            use_cache=True,
            output_hidden_states=True,
        )
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(torch.cat([each.logits for each in pieces]), expected.logits[0], atol=1e-4, rtol=1e-4)
    hidden = torch.cat([each.hidden for each in pieces])[:, 0]
    torch.testing.assert_close(hidden, expected.hidden_states[2][0], atol=1e-4, rtol=1e-4)
    cache.rollback()
    left = IDS[0, 9:].numpy().astype(np.int32)
    found, again = cache.reread(left, run).logits, opened(HFEngine(model), IDS[:, :9])
    torch.testing.assert_close(found, again.forward(left, parents, layers=run).logits, atol=1e-4, rtol=1e-4)


def test_layers_that_cannot_be_split() -> None:
    """Guards what no class tells: parts that are not found, and outputs that are not added; whole layers still work."""
    assert "only attention" in whole_layers_reason(deep_model("bloom"))
    model = deep_model("gpt2")
    assert not whole_layers_reason(model)
    layer = model.transformer.h[1]
    layer.ln_2.register_forward_hook(lambda _module, _given, output: output + 1)
    assert not whole_layers_reason(model)  # its MLP is left out all the same
    layer.register_forward_hook(
        lambda _module, _given, output: (output[0] * 2, *output[1:]) if isinstance(output, tuple) else output * 2
    )
    assert "do more than to add" in whole_layers_reason(model)
    cache = opened(HFEngine(model))
    with pytest.raises(UnsupportedError, match=r"cannot be skipped separately: .*\. Skip whole layers"):
        cache.forward(np.array([4], np.int32), np.array([-1], np.int32), layers=Sublayers((0, 1, 2), (0, 2)))
    assert cache.uncommitted == 0
    cache.forward(np.array([4], np.int32), np.array([-1], np.int32), layers=[0, 2])


def test_rows_of_such_a_pass_are_never_kept() -> None:
    """Guards the target's cache from rows that have no keys in some layers."""
    model = deep_model("llama")
    text = plain_text(model, IDS, 3)
    engine = HFEngine(model)
    cache = opened(engine)
    one, next_one = (
        (np.array([4], np.int32), np.array([-1], np.int32)),
        (np.array([5], np.int32), np.array([0], np.int32)),
    )
    cache.forward(*one, layers=range(2))
    with pytest.raises(UsageError, match="cannot be kept"):
        cache.keep([0])
    for layers in (None, [0], [1, 2]):
        with pytest.raises(UsageError, match="other layers"):
            cache.forward(*next_one, layers=layers)
    with pytest.raises(UsageError, match="neither kept nor dropped"):
        engine.forward([(cache, text[0], DraftTree.empty())])
    cache.forward(*next_one, layers=[0, 1])
    cache.keep([])
    [result] = engine.forward([(cache, text[0], DraftTree.empty())])
    assert int(result.logits[0].argmax()) == text[1]


@pytest.mark.parametrize("layers", [[1, 0], [0, 0], [3], [-1]])
def test_other_orders_are_refused(layers: list[int]) -> None:
    """Guards layers that do not exist, and a layer's rows from being appended twice."""
    cache = opened(HFEngine(deep_model("llama")))
    with pytest.raises(UsageError, match="rise from 0 to 2"):
        cache.forward(np.array([4], np.int32), np.array([-1], np.int32), layers=layers)
    with pytest.raises(UsageError, match="left out"):
        cache.forward(
            np.array([4], np.int32), np.array([-1], np.int32), layers=[0], needs=RequestedOutputs(hidden_layers=(1,))
        )
    assert cache.uncommitted == 0


@pytest.mark.parametrize(
    ("name", "attention", "layers"),
    paired(["llama", "gemma3", "mistral", "gpt2"], ["sdpa", "eager"], [[0, 1], [0, 1, 2]]),
)
def test_committed_tokens_are_read_again(name: str, attention: str, layers: list[int]) -> None:
    """Guards `reread`: the rows are those of a shallower model, and the cache is as it was before."""
    model = deep_model(name, attention)
    engine, shallow = HFEngine(model), truncated(model, layers)
    cache = opened(engine)
    for token in (4, 9, 30):
        cache.forward(np.array([token], np.int32), np.array([-1], np.int32))
        cache.keep([0])
    text = np.array([*IDS[0].tolist(), 4, 9, 30], np.int32)
    with torch.no_grad():
        expected = shallow(torch.from_numpy(text)[None].long()).logits[0]
    for count in (1, 2, 5, 15):
        found = cache.reread(text[-count:], layers).logits
        torch.testing.assert_close(found, expected[-count:], atol=1e-4, rtol=1e-4)
    assert {layer.get_seq_length() for layer in cache.cache.layers} == {cache.length} == {15}
    whole, plain = cache.forward(np.array([7], np.int32), np.array([-1], np.int32)), opened(engine, IDS)
    tokens = np.array([4, 9, 30, 7], np.int32)
    again = plain.forward(tokens, np.arange(-1, 3, dtype=np.int32))
    torch.testing.assert_close(whole.logits[-1], again.logits[-1], atol=1e-4, rtol=1e-4)


def test_padded_texts_are_read_again() -> None:
    """Guards the mask and the positions of a reread behind padding."""
    engine, padding = HFEngine(deep_model("llama")), torch.tensor([[0, 0, 0, *[1] * 12]])
    padded = torch.cat([torch.zeros((1, 3), dtype=torch.long), IDS], dim=1)
    last = IDS[0, -5:].numpy().astype(np.int32)
    found = opened(engine, padded, padding=padding).reread(last, [0, 2])
    torch.testing.assert_close(found.logits, opened(engine).reread(last, [0, 2]).logits, atol=1e-4, rtol=1e-4)


def test_what_cannot_be_read_again() -> None:
    """Guards against more tokens than there are, and rows that would be lost."""
    cache = opened(HFEngine(deep_model("llama")))
    for count in (0, 13):
        with pytest.raises(UsageError, match="12 are committed"):
            cache.reread(np.full(count, 3, np.int32), [0])
    cache.forward(np.array([4], np.int32), np.array([-1], np.int32))
    with pytest.raises(UsageError, match="neither kept nor dropped"):
        cache.reread(np.array([3, 4], np.int32), [0])
    with pytest.raises(UnsupportedError, match="takes no explicit masks"):
        opened(HFEngine(deep_model("bloom"))).reread(np.array([3, 4], np.int32), [0])


def test_layers_that_were_exchanged_are_found_again() -> None:
    """Guards the place that is remembered: a list of layers put in place of the first one is the one that is read."""
    model = deep_model("llama")
    found = find_layers(model)
    assert found is not None
    assert found.belongs_to(model)
    model.model.layers = torch.nn.ModuleList(list(model.model.layers))
    assert not found.belongs_to(model)
    del model.model
    assert not found.belongs_to(model)
