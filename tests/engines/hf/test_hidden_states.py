"""Hidden states that drafters read, on every path that a pass may take, against hooks on the model's layers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gemmas import gemma
from models import deep_model
from pairwise import in_turn
from passes import IDS, opened, rows_of
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import DraftTree
from speculant.engines.hf.acceleration import PlainPasses
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.cuda.graph_runner import GraphRunner
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.views.model_view import find_layers
from tapes import Tapes
from trees import make_tree, random_draft

MODELS = ["llama", "qwen3", "gemma3", "mistral", "gpt2", "phi3", "gpt_neox", "mixtral"]
TAPS = (2, 0, -1)
NEEDS = RequestedOutputs(hidden_layers=TAPS)


@contextlib.contextmanager
def hooked(model: Any) -> Iterator[list[Tensor]]:
    """Collect what the decoder layers return, in order."""
    found: list[Tensor] = []

    def hook(_module: nn.Module, _given: Any, output: Any) -> None:
        found.append((output[0] if isinstance(output, tuple) else output)[0].clone())

    place = find_layers(model)
    assert place is not None
    handles = [layer.register_forward_hook(hook) for layer in place.layers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def outputs(model: Any, text: list[int]) -> Tensor:
    """Return the tapped layers' output [T, L', D] at every token of a text, by hooks."""
    with hooked(model) as found, torch.no_grad():
        model(torch.tensor([text]))
    return torch.stack([found[2], found[0], found[2]], dim=1)


def along(tree: DraftTree, model: Any, root: int) -> Tensor:
    """Return the tapped layers' output [N + 1, L', D] at root and nodes, each path run alone."""
    text = [*IDS[0].tolist(), root]
    rows = [outputs(model, text)[-1]]
    rows += [outputs(model, text + tree.tokens[tree.path(node)].tolist())[-1] for node in range(len(tree))]
    return torch.stack(rows)


def test_the_last_layer_is_tapped_before_the_final_norm() -> None:
    """Guards the convention: transformers' own last hidden state is behind the norm."""
    model = deep_model("llama")
    [result] = (engine := HFEngine(model)).forward([(opened(engine), 4, DraftTree.empty())], NEEDS)
    with torch.no_grad():
        normed = model(torch.tensor([[*IDS[0].tolist(), 4]]), output_hidden_states=True).hidden_states[-1][0, -1]
        torch.testing.assert_close(model.model.norm(result.hidden[0, 0]), normed, atol=1e-4, rtol=1e-4)
    assert engine.capabilities.hidden_layers == 3


@pytest.mark.parametrize(("name", "attention"), in_turn([*MODELS, "bloom"], ["sdpa", "eager"]))
def test_taps_are_what_the_layers_return(name: str, attention: str) -> None:
    """Guards prompts whole and in pieces, trees and chains, in one pass and in several, alone and in a batch."""
    model = deep_model(name, attention)
    engine, text = HFEngine(model), IDS[0].tolist()
    expected = outputs(model, text)
    for maximum in (None, 5):
        for prompt in (True, False):
            cache, result = engine.open(IDS), None
            while result is None:
                result = cache.prefill(maximum, needs=RequestedOutputs(hidden_layers=TAPS, prompt=prompt))
            wanted = expected if prompt else expected[-1:]
            torch.testing.assert_close(result.hidden, wanted, atol=1e-3, rtol=1e-3)
    tree = random_draft(np.random.default_rng(5), 8, 61) if engine.capabilities.trees else make_tree([3, 4], [-1, 0])
    [whole] = engine.forward([(cache, 7, tree)], NEEDS)
    torch.testing.assert_close(whole.hidden, along(tree, model, 7), atol=1e-3, rtol=1e-3)
    cache.rollback()
    tokens, parents = rows_of(7, tree)
    pieces = [cache.forward(tokens[i : i + 2], parents[i : i + 2], needs=NEEDS) for i in range(0, len(tokens), 2)]
    torch.testing.assert_close(torch.cat([each.hidden for each in pieces]), whole.hidden, atol=1e-3, rtol=1e-3)
    cache.rollback()
    passes = engine.forward([(cache, 7, tree), (opened(engine, IDS[:, :5]), 9, DraftTree.empty())], NEEDS)
    torch.testing.assert_close(passes[0].hidden, whole.hidden, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(passes[1].hidden, outputs(model, [*text[:5], 9])[-1:], atol=1e-3, rtol=1e-3)
    assert engine.batch_note == "" or not engine.capabilities.trees


def test_layers_that_share_keys_return_all_rows() -> None:
    """Guards Gemma 4's last layers, which run the last row of a prompt alone where only its logits are wanted."""
    model, needs = gemma("shared"), RequestedOutputs(hidden_layers=(1, -1), prompt=True)
    with hooked(model) as found, torch.no_grad():
        model(IDS)
    expected = torch.stack([found[1], found[-1]], dim=1)
    for maximum in (None, 5):
        for prompt in (True, False):
            cache, result = HFEngine(model).open(IDS), None
            while result is None:
                result = cache.prefill(maximum, needs=replace(needs, prompt=prompt))
            wanted = expected if prompt else expected[-1:]
            torch.testing.assert_close(result.hidden, wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_neox"])
def test_taps_of_accelerated_passes(compiled: Any, name: str) -> None:
    """Guards layers that are computed by other code as a whole, alone and in a batch."""
    model, tree = deep_model(name), random_draft(np.random.default_rng(5), 8, 61)
    expected = along(tree, model, 7)
    engine = HFEngine(model, acceleration=prepare_model(model, True))
    cache = engine.open(IDS)
    result = cache.prefill(needs=RequestedOutputs(hidden_layers=TAPS, prompt=True))
    assert result is not None
    torch.testing.assert_close(result.hidden, outputs(model, IDS[0].tolist()), atol=1e-3, rtol=1e-3)
    other = opened(engine, IDS[:, :5])
    [single] = engine.forward([(cache, 7, tree)], NEEDS)
    cache.rollback()
    passes = engine.forward([(cache, 7, tree), (other, 9, DraftTree.empty())], NEEDS)
    for hidden in (single.hidden, passes[0].hidden):
        torch.testing.assert_close(hidden, expected, atol=1e-3, rtol=1e-3)
    assert not engine.batch_note


def test_recorded_passes_give_way_where_hidden_states_are_wanted() -> None:
    """Guards CUDA graphs, which return logits only: such a pass runs plainly."""
    model, tapes = deep_model("llama"), Tapes()
    engine = HFEngine(model, acceleration=PlainPasses(graphs=GraphRunner(model, lambda: tapes)))
    cache, tree = opened(engine), random_draft(np.random.default_rng(5), 8, 61)
    [plain] = engine.forward([(cache, 7, tree)])
    assert tapes.replayed == 1
    cache.rollback()
    [tapped] = engine.forward([(cache, 7, tree)], NEEDS)
    assert tapes.replayed == 1
    torch.testing.assert_close(tapped.hidden, along(tree, model, 7), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(tapped.logits, plain.logits, atol=1e-4, rtol=1e-4)
    cache.keep([0])
    engine.forward([(cache, 8, tree)])
    assert tapes.replayed == 2


def test_a_users_hooks_are_run_and_seen() -> None:
    """Guards hooks on a layer: taps come after them, and nothing is left on the model."""
    model = deep_model("llama")
    engine = HFEngine(model)
    cache, layer = opened(engine), model.model.layers[2]
    [before] = engine.forward([(cache, 7, DraftTree.empty())], NEEDS)
    cache.rollback()
    handle = layer.register_forward_hook(lambda _module, _given, output: 2 * output)
    [after] = engine.forward([(cache, 7, DraftTree.empty())], NEEDS)
    torch.testing.assert_close(after.hidden[:, 0], 2 * before.hidden[:, 0])
    assert list(layer._forward_hooks) == [handle.id]


def test_layers_that_do_not_exist_are_refused() -> None:
    """Guards a head that was made for a deeper model."""
    cache = opened(HFEngine(deep_model("llama")))
    for wrong in (3, -2):
        with pytest.raises(UsageError, match=f"no hidden layer {wrong}; the model has 3"):
            cache.forward(
                np.array([4], np.int32), np.array([-1], np.int32), needs=RequestedOutputs(hidden_layers=(wrong,))
            )
    assert cache.uncommitted == 0


def test_models_whose_layers_are_not_found_are_refused_by_name() -> None:
    """Guards models of another structure: hidden states are refused, all else works."""
    model = deep_model("llama")
    model.config.num_hidden_layers = 2  # the third is cut off by the model itself
    engine = HFEngine(model)
    assert engine.capabilities.hidden_layers == 0
    cache = opened(engine)
    with pytest.raises(UnsupportedError, match="decoder layers of LlamaForCausalLM were not found"):
        engine.forward([(cache, 4, DraftTree.empty())], NEEDS)


def test_compiled_models_are_refused_by_name() -> None:
    """Guards passes that would run past the taps."""
    model = deep_model("llama")
    engine = HFEngine(model)
    model.model.forward = functools.partial(type(model.model).forward, model.model)
    with pytest.raises(UnsupportedError, match="forward of LlamaModel was replaced"):
        engine.forward([(opened(engine), 4, DraftTree.empty())], NEEDS)
