"""Caches that can only be copied: chains are verified, and what was kept is read again with the next draft."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version
from transformers import RwkvForCausalLM

from architecture_matrix.catalogue import build, names
from models import TRANSFORMERS
from passes import IDS
from speculant import Speculator
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.caches.replay_cache import MAX_PENDING, ReplayTargetCache, copy_writable
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.probe.rounds import wrong_rows

N_GRAMS = "qwen4_exp_text (n-gram embeddings)"
MODELS = [name for name in ("zaya", "rwkv", "deepseek_v4", N_GRAMS) if name in names()]
if Version("5.23") <= TRANSFORMERS:  # in 5.0 xLSTM's own passes over a chunk fail; releases between were not tried
    MODELS.append("xlstm")


def chain(*tokens: int) -> tuple[Any, Any]:
    """Return tokens and parents of rows that follow each other."""
    return np.array(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32)


def opened(name: str, ids: torch.Tensor = IDS) -> ReplayTargetCache:
    sequence = HFEngine(build(name, "eager")).open(ids)
    assert isinstance(sequence, ReplayTargetCache)
    assert sequence.prefill() is not None
    return sequence


def assert_alike(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert not wrong_rows(ours, expected, torch.float32).numel()


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_those_of_one_token_passes(name: str) -> None:
    """Guards chains that are accepted in part, whole or not at all, and tokens that wait to be read again."""
    sequence, text = opened(name), IDS[0].tolist()
    for draft, kept in (((4, 9, 11), 2), ((8, 20), 0), ((30, 31), 3), ((), 1), ((5, 6, 7, 8), 1)):
        tokens, parents = chain(7, *draft)
        expected = sequence.plain_logits(tokens.tolist())
        assert_alike(sequence.forward(tokens, parents).logits, expected)
        sequence.keep(range(kept))
        text += tokens[:kept].tolist()
        assert (sequence.length, sequence.uncommitted) == (len(text), 0)
    fresh = opened(name, torch.tensor([text]))
    assert_alike(sequence.plain_logits([13, 14]), fresh.plain_logits([13, 14]))


@pytest.mark.skipif(N_GRAMS not in MODELS, reason="this release of transformers has no such model")
def test_the_tiny_model_has_embeddings_of_n_grams() -> None:
    """Guards Qwen4 as it is published: the probe's model has the layers that keep it from trees, in small tables."""
    model = build(N_GRAMS, "eager")
    assert [layer.ple is not None for layer in model.model.layers] == [True, False, False]
    assert model.model.layers[0].ple.ple_embedding.ngram_embedding.weight.numel() < 10_000
    assert model.generation_config.eos_token_id not in range(model.config.vocab_size)


def test_a_chain_may_grow() -> None:
    """Guards draft models, which run one token a pass below rows that are not kept."""
    sequence = opened("rwkv")
    whole = sequence.forward(*chain(7, 8, 9)).logits
    sequence.rollback()
    parts = [
        sequence.forward(np.array([token], np.int32), np.array([row - 1], np.int32))
        for row, token in enumerate((7, 8, 9))
    ]
    assert_alike(torch.cat([part.logits for part in parts]), whole)
    with pytest.raises(UnsupportedError, match="chains only"):
        sequence.forward(np.array([5], np.int32), np.array([0], np.int32))


def test_few_tokens_wait() -> None:
    """Guards the cost of a text whose drafts all fail: what waits is bounded."""
    sequence = opened("rwkv")
    for token in range(MAX_PENDING + 8):
        sequence.forward(*chain(3 + token, 60))
        sequence.keep([0])
        assert len(sequence._pending) <= MAX_PENDING + 1


def test_hidden_states_are_those_of_the_new_rows() -> None:
    """Guards heads: states of tokens that were read again are no news."""
    sequence = opened("rwkv")
    sequence.forward(*chain(7, 8))
    sequence.keep([0])
    result = sequence.forward(*chain(9, 10), needs=RequestedOutputs(hidden_layers=(0,)))
    assert result.hidden.shape[0] == len(result.logits) == 2


def test_what_is_written_in_place_is_copied() -> None:
    """Guards rollback: a copy shares keys and values, which passes replace, and no state."""
    held = {"keys": torch.zeros(2), "recurrent_states": {0: torch.zeros(2)}, "list": [torch.zeros(1)]}
    twin = copy_writable(held)
    assert twin["recurrent_states"][0] is not held["recurrent_states"][0]  # type: ignore[index]
    assert twin["list"][0] is not held["list"][0]


@pytest.mark.parametrize(
    "name",  # whole texts of RWKV are among those of `test_architectures`; n-grams are a matter of rows, as above
    [pytest.param(name, marks=pytest.mark.slow if name in ("rwkv", N_GRAMS) else ()) for name in MODELS],
)
def test_texts_and_batches(name: str) -> None:
    """Guards `generate` with drafts on such a model: the text, a note, and no cache for another turn."""
    model = build(name, "eager")
    speculator = Speculator.from_transformers(model, method="recycling", nodes=4, fast=False)
    ids = IDS[:, :6]
    options: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    expected = model.generate(ids, **options)[0, 6:].tolist()
    result = speculator.generate(ids[0].tolist(), max_new_tokens=10, temperature=0)
    assert result.ids == expected
    assert result.cache is None
    assert any("read again" in note for note in result.stats.notes)
    several = speculator.generate_batch([ids[0].tolist()] * 2, max_new_tokens=10, temperature=0)
    assert [each.ids for each in several] == [expected] * 2


def test_weights_are_rescaled_once() -> None:
    """Guards RWKV, which divides weights in its first pass and notes it on the model: on a view that was forgotten."""
    config = build("rwkv", "eager").config
    config.rescale_every = 1
    models = [RwkvForCausalLM(copy.deepcopy(config)).eval() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    sequence = HFEngine(models[0]).open(IDS)
    ours = sequence.prefill(needs=RequestedOutputs(hidden_layers=(0,), prompt=True))
    sequence.forward(*chain(7, 8), needs=RequestedOutputs(hidden_layers=(0,)))
    with torch.no_grad():
        expected = models[1](IDS).logits[0, -1:]
    assert_alike(ours.logits, expected)
    weights = zip(models[0].parameters(), models[1].parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
