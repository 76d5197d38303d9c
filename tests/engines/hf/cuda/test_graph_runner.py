"""Recorded passes: everything but CUDA's own recording, with a recorder that notices on any device what CUDA would."""

from __future__ import annotations

import gc
import itertools
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models import PHI3, tiny_model
from pairwise import in_turn
from passes import IDS, opened, plain_text
from speculant import Speculator
from speculant.core.tree import DraftTree
from speculant.engines.hf.cpu.accelerate import CpuAcceleration
from speculant.engines.hf.cuda.graph_runner import MIN_LENGTH, ROWS, GraphRunner, length_bucket
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.probe.live_check import DEEPEST
from speculant.engines.hf.target_cache import HFTargetCache
from tapes import Tapes, graphs_of, recorded
from trees import random_draft

LONG = torch.cat([IDS] * 14, dim=1)  # the text outgrows the shortest length soon
MODELS = ["llama", "qwen3", "mistral", "gpt2", "gemma3", "mixtral", "phi3", "gpt_neox"]
TEXTS = ("llama", "gpt2", "gemma3", "mixtral")  # whose texts are compared in fast tests, as logits of all models are


def verify(engine: HFEngine, cache: HFTargetCache, root: int, tree: DraftTree) -> Tensor:
    """Return the logits of a root and a draft below it."""
    logits: Tensor = engine.forward([(cache, root, tree)])[0].logits
    return logits


def rows_to_keep(path: list[int]) -> list[int]:
    """Return the rows of the root and the nodes of a path."""
    return [0, *(node + 1 for node in path)]


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        *(pytest.param(name, "sdpa") for name in TEXTS),
        *(
            pytest.param(name, "sdpa", marks=(PHI3, pytest.mark.slow) if name == "phi3" else pytest.mark.slow)
            for name in MODELS
            if name not in TEXTS
        ),
        ("llama", "eager"),
        pytest.param("gemma3", "eager", marks=pytest.mark.slow),
    ],
)
def test_greedy_text_is_that_of_plain_generate(name: str, attention: str) -> None:
    """Guards losslessness over several lengths and a growth of the cache, with every pass replayed."""
    model, tapes = tiny_model(name, attention), Tapes()
    speculator = recorded(model, tapes, nodes=20)
    speculator.engine.probe()
    tapes.replayed = 0
    result = speculator.generate(LONG, max_new_tokens=60, temperature=0, eos_token_id=None)
    assert result.ids == plain_text(model, LONG, 60)
    assert 0 <= tapes.replayed - result.stats.rounds <= DEEPEST + 1  # the live check's first sample
    assert tapes.recorded > len(ROWS)
    assert graphs_of(speculator)._buffers.capacity > MIN_LENGTH


@pytest.mark.parametrize("name", ["llama", pytest.param("mistral", marks=pytest.mark.slow)])
def test_a_length_is_crossed_without_growth(name: str) -> None:
    """Guards passes over several lengths of the same buffers, kept for the next text."""
    model, tapes = tiny_model(name), Tapes()
    speculator = recorded(model, tapes, capacity=512, nodes=8)
    expected = plain_text(model, LONG, 60)
    assert speculator.generate(LONG, max_new_tokens=60, temperature=0, eos_token_id=None).ids == expected
    assert tapes.recorded == 2 * len(ROWS)
    assert speculator.generate(LONG, max_new_tokens=60, temperature=0, eos_token_id=None).ids == expected
    assert tapes.recorded == 2 * len(ROWS)


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "gpt2"))]
)
def test_sampled_text_is_that_of_plain_decoding(name: str) -> None:
    """Guards sampling: a seed gives the same text."""
    model = tiny_model(name)
    options: dict[str, Any] = {"max_new_tokens": 60, "temperature": 0.7, "top_p": 0.9, "seed": 5, "eos_token_id": None}
    plain = Speculator.from_transformers(model, method="none", fast=False).generate(IDS, **options).ids
    assert recorded(model).generate(IDS, **options).ids == plain


@pytest.mark.parametrize(("name", "padded"), in_turn(MODELS, [False, True]))
def test_logits_of_branching_drafts_are_those_of_plain_passes(name: str, padded: bool) -> None:
    """Guards masks, positions, windows and padding in every number of rows, with paths that move rows."""
    model, random = tiny_model(name), np.random.default_rng(3)
    padding = torch.tensor([[0, 0, 0, *[1] * 9]]) if padded else None
    graphs = GraphRunner(model, Tapes, capacity=MIN_LENGTH)
    engines = [HFEngine(model), HFEngine(model, acceleration=CpuAcceleration(graphs=graphs))]
    caches = [opened(engine, padding=padding) for engine in engines]
    for nodes in (0, 1, 2, 3, 8, 13, 30, 64, 5):
        tree = random_draft(random, nodes, 61)
        plain, replayed = (verify(*each, 7, tree) for each in zip(engines, caches, strict=True))
        torch.testing.assert_close(replayed, plain, atol=1e-5, rtol=1e-5)
        path = tree.path(int(random.integers(len(tree)))).tolist() if len(tree) else []
        for cache in caches:
            cache.keep(rows_to_keep(path))
    for plain, replayed in zip(*(cache.cache.layers for cache in caches), strict=True):
        torch.testing.assert_close(replayed.keys, plain.keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(replayed.values, plain.values, atol=1e-5, rtol=1e-5)


def test_buffers_stay_where_they_are() -> None:
    """Guards what a graph relies on: between rounds nothing that it reads or writes moves, the cache included."""
    speculator = recorded(tiny_model("llama"))
    graphs = graphs_of(speculator)

    def places() -> list[int]:
        fixed = [graphs._logits, graphs._seen, graphs._columns, *graphs._inputs.values()]
        return [each.data_ptr() for each in [*fixed, *graphs._buffers.keys, *graphs._buffers.values]]

    before = places()
    stream = speculator.stream(IDS, max_new_tokens=60, temperature=0, eos_token_id=None)
    for _ in itertools.islice(stream, 1, None):
        assert places() == before
        for layer, keys, values in zip(
            stream.result.cache.layers, graphs._buffers.keys, graphs._buffers.values, strict=True
        ):
            assert (layer.keys.data_ptr(), layer.values.data_ptr()) == (keys.data_ptr(), values.data_ptr())
    assert len(stream.result.ids) == 60


def test_logits_outlive_the_next_pass() -> None:
    """Guards scores that a request keeps, since every pass writes its logits to the same place."""
    model = tiny_model("llama")
    engine = HFEngine(model, acceleration=CpuAcceleration(graphs=GraphRunner(model, Tapes)))
    cache = opened(engine)
    first = verify(engine, cache, 7, DraftTree.empty())
    kept = first.clone()
    cache.keep([0])
    verify(engine, cache, 8, DraftTree.empty())
    assert torch.equal(first, kept)


def test_a_round_that_fails_leaves_nothing() -> None:
    """Guards rollback: the text goes on as if the pass had not been."""
    model, tapes = tiny_model("llama"), Tapes()
    engine = HFEngine(model, acceleration=CpuAcceleration(graphs=GraphRunner(model, lambda: tapes)))
    cache = opened(engine)
    tree = random_draft(np.random.default_rng(2), 12, 61)
    expected = verify(engine, cache, 7, tree)
    cache.rollback()
    tapes.fail_replay = True
    with pytest.raises(ValueError, match="interrupted"):
        verify(engine, cache, 7, tree)
    cache.rollback()
    assert cache.cache.get_seq_length() == IDS.shape[1]
    torch.testing.assert_close(verify(engine, cache, 7, tree), expected)


def test_larger_drafts_run_plain_passes() -> None:
    """Guards what no shape fits, in the middle of a text: plain passes append to the same rows."""
    model, tapes = tiny_model("llama"), Tapes()
    graphs = GraphRunner(model, lambda: tapes)
    engines = [HFEngine(model), HFEngine(model, acceleration=CpuAcceleration(graphs=graphs))]
    caches = [opened(engine) for engine in engines]
    random = np.random.default_rng(4)
    for nodes in (10, 100, 10):
        tree = random_draft(random, nodes, 61)
        plain, replayed = (verify(*each, 3, tree) for each in zip(engines, caches, strict=True))
        torch.testing.assert_close(replayed, plain, atol=1e-5, rtol=1e-5)
        for cache in caches:
            cache.keep(rows_to_keep(tree.path(len(tree) - 1).tolist()))
    assert graphs._buffers.holds(caches[1].cache)
    assert tapes.replayed == 2


def test_requests_take_turns_with_the_buffers() -> None:
    """Guards two streams at once, and the cache of a text that is done when the next one takes the buffers."""
    model = tiny_model("qwen3")
    speculator, other = recorded(model), IDS.flip(1)
    options = {"max_new_tokens": 30, "temperature": 0, "eos_token_id": None}
    streams = [speculator.stream(ids, **options) for ids in (IDS, other)]
    texts = [plain_text(model, ids, 60) for ids in (IDS, other)]
    for _ in itertools.zip_longest(*streams):
        pass
    assert [stream.result.ids for stream in streams] == [text[:30] for text in texts]
    # The second holds the buffers, the first a copy.
    for stream, ids, expected in zip(streams, (IDS, other), texts, strict=True):
        text = [*ids[0].tolist(), *stream.result.ids]
        more = speculator.generate(text, cache=stream.result.cache, **options)
        assert more.ids == expected[30:]
        assert more.stats.prompt_tokens == 1


def test_nothing_of_another_text_is_read() -> None:
    """Guards rows of an earlier text that are no numbers: a weight of zero would not hide them."""
    model, speculator = tiny_model("llama"), recorded(tiny_model("llama"))
    for rows in (*graphs_of(speculator)._buffers.keys, *graphs_of(speculator)._buffers.values):
        rows.fill_(torch.nan)
    result = speculator.generate(IDS, max_new_tokens=30, temperature=0, eos_token_id=None)
    assert result.ids == plain_text(model, IDS, 30)


def test_a_batch_shares_the_model_with_single_requests() -> None:
    """Guards batches, whose last request runs alone, on the buffers."""
    model = tiny_model("llama")
    speculator = recorded(model)
    prompts = [IDS, IDS.flip(1), IDS[:, 3:]]
    results = speculator.generate_batch(prompts, size=2, max_new_tokens=30, temperature=0, eos_token_id=None)
    assert [each.ids for each in results] == [plain_text(model, ids, 30) for ids in prompts]


def test_padded_prompts_are_decoded() -> None:
    """Guards `model.generate` with a padded prompt, and that the next request sees all of its own."""
    model, tapes = tiny_model("llama"), Tapes()
    speculator = recorded(model, tapes)
    padded, mask = torch.cat([torch.zeros(1, 4, dtype=torch.long), IDS], 1), torch.ones(1, 16, dtype=torch.long)
    mask[:, :4] = 0
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 30, "do_sample": False}
    expected = model.generate(padded, **options)
    assert torch.equal(model.generate(padded, custom_generate=speculator, **options), expected)
    assert tapes.replayed
    assert speculator.generate(IDS, max_new_tokens=30, temperature=0).ids == expected[0, 16:].tolist()


def test_inference_mode_comes_and_goes() -> None:
    """Guards torch's rule that tensors made in that mode are written only in it."""
    model = tiny_model("llama")
    with torch.inference_mode():
        speculator = recorded(model)
    options = {"max_new_tokens": 60, "temperature": 0, "eos_token_id": None}
    expected = plain_text(model, LONG, 60)
    for inference in (False, True, False):
        with torch.inference_mode(inference):
            assert speculator.generate(LONG, **options).ids == expected


def test_changed_weights_count_at_once() -> None:
    """Guards training between requests: what was recorded on old weights is not replayed."""
    model, tapes = tiny_model("llama"), Tapes()
    speculator = recorded(model, tapes)
    speculator.generate(IDS, max_new_tokens=5, temperature=0)
    before = tapes.recorded
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(-1)
    expected = plain_text(model, IDS, 30)
    assert speculator.generate(IDS, max_new_tokens=30, temperature=0, eos_token_id=None).ids == expected
    assert tapes.recorded == before
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.flip(0))
    expected = plain_text(model, IDS, 30)
    assert speculator.generate(IDS, max_new_tokens=30, temperature=0, eos_token_id=None).ids == expected
    assert tapes.recorded > before


def test_hooks_that_come_later_are_run(caplog: pytest.LogCaptureFixture) -> None:
    """Guards code that a recording would leave out: that request runs plain passes, and says so; the next does not."""
    model, tapes = tiny_model("llama"), Tapes()
    speculator = recorded(model, tapes)
    hook = model.model.layers[1].register_forward_hook(lambda _, __, output: -output)
    expected = plain_text(model, IDS, 30)
    assert speculator.generate(IDS, max_new_tokens=30, temperature=0, eos_token_id=None).ids == expected
    assert not tapes.replayed
    assert "hooks" in caplog.text  # the probe's passes say so, too
    hook.remove()
    expected = plain_text(model, IDS, 30)
    assert speculator.generate(IDS, max_new_tokens=30, temperature=0, eos_token_id=None).ids == expected
    assert tapes.replayed


def test_another_thread_leaves_rows_in_use_alone() -> None:
    """Guards two threads on one model: the second runs plain passes while the first one's cache lies in the buffers."""
    model, tapes, found = tiny_model("llama"), Tapes(), []
    speculator = recorded(model, tapes)
    options = {"max_new_tokens": 30, "temperature": 0, "eos_token_id": None}

    def run() -> None:
        found.append(speculator.generate(IDS.flip(1), **options).ids)

    stream = speculator.stream(IDS, **options)
    pieces = iter(stream)
    for _ in range(3):
        next(pieces)
    for freed in (False, True):
        if freed:
            assert [*pieces]
            assert stream.result.ids == plain_text(model, IDS, 30)
            del stream, pieces
            gc.collect()
        before = tapes.replayed
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert (tapes.replayed > before) == freed
    assert found == [plain_text(model, IDS.flip(1), 30)] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", MODELS)
def test_cuda_graphs_give_the_text_of_plain_decoding(name: str) -> None:
    """Guards the recording itself, where there is a device for it; runs nowhere else."""
    model = tiny_model(name).cuda()
    speculator = Speculator.from_transformers(model, fast=True, nodes=20)
    graphs, ids = graphs_of(speculator), IDS.cuda()
    assert speculator.generate(ids, max_new_tokens=220, temperature=0, eos_token_id=None).ids == plain_text(
        model, ids, 220
    )
    assert not graphs._failed
    assert len({length for _, length in graphs._replays}) > 1


@pytest.mark.parametrize("capacity", [MIN_LENGTH, 512])
def test_a_recording_that_fails_later_is_logged_once(capacity: int, caplog: pytest.LogCaptureFixture) -> None:
    """Guards a device that gets full in the middle of a text: plain passes go on where the others stopped."""
    model, tapes = tiny_model("llama"), Tapes()
    speculator = recorded(model, tapes, capacity=capacity, nodes=8)
    tapes.fail_recording = True
    results = [speculator.generate(LONG, max_new_tokens=60, temperature=0, eos_token_id=None) for _ in range(2)]
    assert [each.ids for each in results] == [plain_text(model, LONG, 60)] * 2
    assert 0 < tapes.replayed < results[0].stats.rounds
    assert caplog.messages == ["plain passes from now on: the device is full."]


def test_lengths_are_few_and_large_enough() -> None:
    """Guards the shapes: every length has room, at most half as much again, and few of them cover long texts."""
    lengths = [length_bucket(rows) for rows in range(1, 5000)]
    assert all(rows <= length for rows, length in enumerate(lengths, 1))
    assert all(2 * length <= 3 * rows for rows, length in enumerate(lengths, 1) if length > MIN_LENGTH)
    assert sorted(set(lengths)) == [256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144]
