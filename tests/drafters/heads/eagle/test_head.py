"""EAGLE-1: its formula, its cache, and texts drafted with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eagles import compare_histories, eagle_formula, eagle_head, plain_text, replayed, started, states, target_model
from models import tiny_model
from pairwise import in_turn
from speculant import Speculator
from speculant.drafters.heads.checkpoints.formats import load_head
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.eagle import checkpoint as eagle
from speculant.drafters.heads.eagle.head import EagleHead
from speculant.drafters.heads.layers import LayerShape
from speculant.engines.hf.views.target_parts import HFTargetParts

PROMPTS = [[5, 7, 9, 11, 13], [20, 3, 20, 3], [42], [8, 8, 30, 31, 32, 33, 8]]


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a target."""
    return target_model(num_hidden_layers=2)


@pytest.fixture(scope="module")
def target(model: Any) -> HFTargetParts:
    """Return its parts."""
    return HFTargetParts(model)


@pytest.mark.parametrize(("bias", "qkv"), [(True, False), (False, False), (False, True)])
def test_logits_are_the_formula(target: HFTargetParts, *, bias: bool, qkv: bool) -> None:
    """Guards pairing, order of the concatenation, positions, and the norms that EAGLE-1 lacks."""
    head = eagle_head(fc_bias=bias, bias=qkv)
    hidden, following = states(12, 1)
    with torch.no_grad():
        wanted = target.project(eagle_formula(head.state_dict(), target, target.norm(hidden[:, -1]), following))
    for count in (1, 5, 12):
        found = started(head, target, hidden[:count], following[:count])
        assert torch.allclose(found[0], wanted[count - 1], atol=1e-5, rtol=1e-4)


def test_drafted_rows_go_on_from_predicted_states(target: HFTargetParts) -> None:
    """Guards the recurrence: a drafted row reads the output of the row above it as if it were the target's state."""
    head, (hidden, following) = eagle_head(), states(6, 1)
    state = replayed(head, target, hidden, following)
    with torch.inference_mode():
        drafted, features = [state.grow([17], [-1]), state.grow([4], [0])], target.norm(hidden[:, -1])
        for token, found in zip([17, 4], drafted, strict=True):
            predicted = eagle_formula(head.state_dict(), target, features, following)[-1:]
            features, following = torch.cat([features, predicted]), torch.cat([following, torch.tensor([token])])
            wanted = target.project(eagle_formula(head.state_dict(), target, features, following)[-1])
            assert torch.allclose(found[0], wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_cached_rows_equal_rows_read_at_once(target: HFTargetParts, seed: int) -> None:
    """Guards the cache after drafts, rollbacks and second turns: no row of a draft is left."""
    compare_histories(eagle_head(), target, 1, seed)


@pytest.mark.parametrize(("method", "name"), in_turn(["eagle", "eagle2"], ["llama", "gemma3"]))
def test_greedy_text_is_the_targets(tmp_path: Path, method: str, name: str) -> None:
    """Guards losslessness with a random head: one text, a batch, and a second turn, also with sliding windows."""
    model = tiny_model(name)
    eagle.save(eagle_head(), tmp_path, HFTargetParts(model))
    speculator = Speculator.from_transformers(model, head=str(tmp_path), method=method, nodes=6)
    results = speculator.generate_batch(PROMPTS, size=3, max_new_tokens=10, temperature=0)
    for result, prompt in zip(results, PROMPTS, strict=True):
        assert list(result.ids) == plain_text(model, prompt, 10)
    first = speculator.generate(PROMPTS[0], max_new_tokens=10, temperature=0)
    assert list(first.ids) == list(results[0].ids)
    longer = PROMPTS[0] + list(first.ids) + [3, 4]
    assert list(speculator.generate(longer, max_new_tokens=8, temperature=0).ids) == plain_text(model, longer, 8)


def test_the_static_tree_drafts_for_it(model: Any, tmp_path: Path) -> None:
    """Guards tree=static: the published tree of 25 nodes, with the target's own text."""
    eagle.save(eagle_head(), tmp_path, HFTargetParts(model))
    speculator = Speculator.from_transformers(
        model, head=str(tmp_path), method="eagle", settings={"tree": "static", "depth": 5}, nodes=25
    )
    result = speculator.generate(PROMPTS[0], max_new_tokens=16, temperature=0)
    assert list(result.ids) == plain_text(model, PROMPTS[0], 16)
    assert result.stats.drafted >= 25


def test_an_oracle_is_accepted_whole() -> None:
    """Guards the pairing in decoding: a head whose layer computes the target's own next state is never rejected."""
    one = tiny_model("llama", num_hidden_layers=1)
    one.generation_config.eos_token_id = None
    torch.nn.init.zeros_(one.model.layers[0].self_attn.o_proj.weight)  # the first token has no row on a head
    parts = HFTargetParts(one)
    head = _Oracle(one)
    speculator = Speculator.from_transformers(
        one, head=LoadedHead(head, parts, "eagle", "eagle"), method="eagle", nodes=4
    )
    result = speculator.generate(PROMPTS[0], max_new_tokens=21, temperature=0)
    assert list(result.ids) == plain_text(one, PROMPTS[0], 21)
    assert result.stats.mat == pytest.approx(5.0)


def test_saved_heads_load_again(target: HFTargetParts, tmp_path: Path) -> None:
    """Guards the detection: what was saved is found to be EAGLE-1, for both of its methods."""
    eagle.save(eagle_head(), tmp_path, target)
    loaded = load_head(tmp_path, target)
    assert (loaded.kind, loaded.method) == ("eagle", "eagle2")


class _Oracle(EagleHead):
    """A head that runs the one layer of its target on embeddings, and returns the state after the final norm."""

    def __init__(self, model: Any) -> None:
        layer = model.model.layers[0]
        super().__init__(LayerShape(hidden=32, inner=48, heads=4, kv_heads=2, head_dim=8))
        self._layer_norm, self._final = layer.input_layernorm, model.model.norm
        self.layers[0].load_state_dict(layer.state_dict(), strict=False)

    def layer_input(self, index: int, embeddings: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return embeddings, self._layer_norm(embeddings)

    def carry(self, x: torch.Tensor) -> torch.Tensor:
        return self._final(x)
