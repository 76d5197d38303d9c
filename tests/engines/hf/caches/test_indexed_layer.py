"""Layers that choose what they attend to by an index: its keys are kept and dropped with the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from architecture_matrix.catalogue import build, names
from passes import IDS, opened, rows_of
from speculant.core.errors import OutOfMemoryError
from speculant.engines.hf.caches.indexed_layer import IndexedLayer
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.probe.rounds import wrong_rows
from trees import make_tree

if "deepseek_v32" not in names():
    pytest.skip("this release of transformers has no such layers", allow_module_level=True)


MODELS = ["deepseek_v32", "glm_moe_dsa", "dots3_note", "qwen4_exp_text"]


@pytest.mark.parametrize("name", [name for name in MODELS if name in names()])
def test_rows_choose_among_their_ancestors(name: str) -> None:
    """Guards trees below texts longer than the index chooses: no row is moved by siblings, before and after a keep."""
    engine = HFEngine(build(name, "eager"))
    sequence, tree = opened(engine, IDS), make_tree([4, 9, 11, 17, 20], [-1, -1, 0, 1, 3])
    config = engine.model.config
    assert getattr(config, "index_topk", getattr(config, "indexer_budget", None)) < IDS.shape[1]
    for _ in range(2):
        [result] = engine.forward([(sequence, 7, tree)])
        sequence.rollback()
        for path in ([0, 2], [1, 3, 4]):
            expected = sequence.plain_logits([7, *(int(tree.tokens[node]) for node in path)])
            ours = result.logits[[0, *(node + 1 for node in path)]]
            assert not wrong_rows(ours, expected, torch.float32).numel()
        sequence.forward(*rows_of(7, tree))
        sequence.keep([0, 2, 4])


def test_the_index_has_a_key_for_every_row() -> None:
    """Guards rollback, copies of beginnings and what a cache weighs."""
    engine = HFEngine(build("deepseek_v32", "eager"))
    sequence = opened(engine, IDS)
    layers = [layer for layer in sequence.cache.layers if isinstance(layer, IndexedLayer)]
    assert layers
    first = [layer.indexer_keys.clone() for layer in layers]
    sequence.forward(*rows_of(7, make_tree([4, 9], [-1, -1])))
    sequence.keep([0, 2])
    for layer, before in zip(layers, first, strict=True):
        assert layer.indexer_keys.shape[1] == layer.get_seq_length() == 14
        assert torch.equal(layer.indexer_keys[:, :12], before)
    other = opened(engine, torch.tensor([[*IDS[0].tolist(), 7, 9]]))
    for layer, expected in zip(layers, other.cache.layers, strict=True):
        torch.testing.assert_close(layer.indexer_keys, expected.indexer_keys, atol=1e-4, rtol=1e-4)
    copy = engine.copy_prefix(sequence.cache, 12, room=40)
    assert [layer.indexer_keys.shape[1] for layer in copy.layers] == [12] * len(layers)
    assert engine.held_bytes(sequence.cache) > sum(layer.rows_nbytes for layer in layers)
    assert np.isfinite(sequence.plain_logits([3]).numpy()).all()


def test_pools_are_not_larger_than_what_is_chosen() -> None:
    """Guards the tiny GLM-5-Next: a row that sees nothing would attend to all rows of its pass in eager attention."""
    config = build("glm5_next", "eager").config.text_config
    assert 1 < config.index_kpool <= config.index_topk


@pytest.mark.skipif("qwen4_exp_text" not in names(), reason="this release of transformers has no such model")
def test_positions_are_kept_and_dropped_with_the_rows() -> None:
    """Guards Qwen4, whose first index keeps the positions of all rows: a rejected row's moved every later one."""
    engine = HFEngine(build("qwen4_exp_text", "eager"))
    sequence = opened(engine, IDS)
    [layer] = [layer for layer in sequence.cache.layers if isinstance(layer, IndexedLayer)]
    sequence.forward(*rows_of(7, make_tree([4, 9, 11], [-1, -1, 1])))
    sequence.keep([0, 2, 3])
    assert layer.indexer_position_ids is not None
    assert layer.indexer_position_ids[0, 0].tolist() == list(range(15))
    sequence.forward(*rows_of(8, make_tree([4, 9], [-1, 0])))
    sequence.rollback()
    assert layer.indexer_position_ids[0, 0].tolist() == list(range(15))
    copy = engine.copy_prefix(sequence.cache, 12, room=40)
    [first] = [layer for layer in copy.layers if isinstance(layer, IndexedLayer)]
    assert first.indexer_position_ids is not None
    assert first.indexer_position_ids.shape[-1] == 12


@pytest.mark.parametrize(
    ("name", "place"), [("deepseek_v32", "mlp"), ("qwen4_exp_text", "mlp"), ("qwen4_exp_text", "self_attn.q_proj")]
)
def test_a_first_pass_that_fails_leaves_nothing(name: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards prompts that are read again after a full device: no key or position is there twice."""
    if name not in names():
        pytest.skip("this release of transformers has no such model")
    engine = HFEngine(build(name, "eager"))
    indexed = next(layer for layer in engine.model.model.layers if hasattr(layer, "self_attn"))
    sequence = engine.open(IDS)
    with monkeypatch.context() as patch:
        patch.setattr(indexed.get_submodule(place), "forward", _full)
        with pytest.raises(OutOfMemoryError):
            sequence.prefill()
    sequence.restart()
    assert sequence.prefill() is not None
    expected = opened(engine, IDS).cache.layers
    for layer, other in zip(sequence.cache.layers, expected, strict=True):
        if isinstance(layer, IndexedLayer):
            assert torch.equal(layer.indexer_keys, other.indexer_keys)
            positions = layer.indexer_position_ids
            assert positions is None or torch.equal(positions, other.indexer_position_ids)


def _full(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError("full")
