"""Recorded passes: everything but CUDA's own recording, with a recorder that notices on any device what CUDA would."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models import tiny_model
from passes import IDS, Greedy, greedy_texts, opened, plain_text
from speculant.core.tree import DraftTree
from speculant.engines.hf.cpu.accelerate import Acceleration, prepare_model
from speculant.engines.hf.cuda.graph_runner import LEAST_LENGTH, ROWS, GraphError, GraphRunner, length_bucket
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.target_cache import HFTargetCache
from tapes import Tapes, graphs_of, recorded
from trees import random_draft

MODELS = ["llama", "qwen3", "mistral", "gpt2", "gemma3", "mixtral", "phi3", "gpt_neox"]


def text_of(engine: HFEngine, expected: list[int], ids: Tensor = IDS, **options: Any) -> list[int]:
    """Return the text that rounds over one sequence give."""
    greedy = Greedy(engine, ids, expected, **options)
    while not greedy.ended:
        one_round(greedy)
    return greedy.ids


def one_round(greedy: Greedy) -> None:
    tree = greedy.draft()
    [result] = greedy.engine.forward([(greedy.cache, greedy.ids[-1], tree)])
    greedy.commit(tree, result.logits)


@pytest.mark.parametrize(
    ("name", "attention"), [*((name, "sdpa") for name in MODELS), ("llama", "eager"), ("gemma3", "eager")]
)
def test_greedy_text_is_that_of_plain_generate(name: str, attention: str) -> None:
    """Guards losslessness over several lengths and a growth of the cache, with every pass replayed."""
    model, tapes = tiny_model(name, attention), Tapes()
    engine = recorded(model, tapes)
    greedy = Greedy(engine, IDS, plain_text(model, IDS, 220))
    while not greedy.ended:
        one_round(greedy)
    assert greedy.ids == greedy.text
    assert tapes.replayed == greedy.rounds
    assert tapes.recorded > len(ROWS)
    assert graphs_of(engine)._buffers.capacity > LEAST_LENGTH


def test_a_length_is_crossed_without_growth() -> None:
    """Guards passes over several lengths of the same buffers, kept for the next text."""
    model, tapes = tiny_model("llama"), Tapes()
    engine, expected = recorded(model, tapes, capacity=512), plain_text(model, IDS, 220)
    for _ in range(2):
        assert text_of(engine, expected) == expected
        assert tapes.recorded == 2 * len(ROWS)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_branching_drafts_are_those_of_plain_passes(name: str, padded: bool) -> None:
    """Guards masks, positions, windows and padding in every number of rows, with paths that move rows."""
    model, random = tiny_model(name), np.random.default_rng(3)
    padding = torch.tensor([[0, 0, 0, *[1] * 9]]) if padded else None
    engines = HFEngine(model), recorded(model)
    caches = [opened(engine, padding=padding) for engine in engines]
    for nodes in (0, 1, 2, 3, 8, 13, 30, 64, 5):
        tree = random_draft(random, nodes, 61)
        plain, replayed = (
            engine.forward([(cache, 7, tree)])[0].logits for engine, cache in zip(engines, caches, strict=True)
        )
        torch.testing.assert_close(replayed, plain, atol=1e-5, rtol=1e-5)
        path = tree.path(int(random.integers(len(tree)))).tolist() if len(tree) else []
        for cache in caches:
            cache.keep([0, *(node + 1 for node in path)])
    for plain, replayed in zip(*(cache.cache.layers for cache in caches), strict=True):
        torch.testing.assert_close(replayed.keys, plain.keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(replayed.values, plain.values, atol=1e-5, rtol=1e-5)


def test_buffers_stay_where_they_are() -> None:
    """Guards what a graph relies on: between rounds nothing that it reads or writes moves, the cache included."""
    model = tiny_model("llama")
    engine = recorded(model)
    graphs = graphs_of(engine)

    def places() -> list[int]:
        fixed = [graphs._logits, graphs._seen, graphs._columns, *graphs._inputs.values()]
        return [each.data_ptr() for each in [*fixed, *graphs._buffers.keys, *graphs._buffers.values]]

    before, greedy = places(), Greedy(engine, IDS, plain_text(model, IDS, 60))
    while not greedy.ended:
        one_round(greedy)
        assert places() == before
        layers = zip(greedy.cache.cache.layers, graphs._buffers.keys, graphs._buffers.values, strict=True)
        for layer, keys, values in layers:
            assert (layer.keys.data_ptr(), layer.values.data_ptr()) == (keys.data_ptr(), values.data_ptr())
    assert greedy.ids == greedy.text


def step(cache: HFTargetCache, engine: HFEngine, root: int, tree: DraftTree | None = None) -> Tensor:
    logits: Tensor = engine.forward([(cache, root, DraftTree.empty() if tree is None else tree)])[0].logits
    return logits


def test_logits_outlive_the_next_pass() -> None:
    """Guards scores that a request keeps, since every pass writes its logits to the same place."""
    engine = recorded(tiny_model("llama"))
    cache = opened(engine)
    first = step(cache, engine, 7)
    kept = first.clone()
    cache.keep([0])
    step(cache, engine, 8)
    assert torch.equal(first, kept)


def test_a_round_that_fails_leaves_nothing() -> None:
    """Guards rollback: the text goes on as if the pass had not been."""
    tapes = Tapes()
    engine = recorded(tiny_model("llama"), tapes)
    cache, tree = opened(engine), random_draft(np.random.default_rng(2), 12, 61)
    expected = step(cache, engine, 7, tree)
    cache.rollback()
    tapes.fail_replay = True
    with pytest.raises(ValueError, match="interrupted"):
        step(cache, engine, 7, tree)
    cache.rollback()
    assert cache.cache.get_seq_length() == IDS.shape[1]
    torch.testing.assert_close(step(cache, engine, 7, tree), expected)


def test_larger_drafts_and_rows_below_others_run_plain_passes() -> None:
    """Guards what no shape fits, in the middle of a text: plain passes append to the same rows."""
    model, tapes = tiny_model("llama"), Tapes()
    engines = HFEngine(model), recorded(model, tapes)
    caches, random = [opened(engine) for engine in engines], np.random.default_rng(4)
    for nodes in (10, 100, 10):
        tree = random_draft(random, nodes, 61)
        plain, replayed = (step(cache, engine, 3, tree) for engine, cache in zip(engines, caches, strict=True))
        torch.testing.assert_close(replayed, plain, atol=1e-5, rtol=1e-5)
        for cache in caches:
            cache.keep([0, *(tree.path(len(tree) - 1) + 1)])
    for first in (True, False):
        row = np.array([9], np.int32), np.array([-1 if first else 0], np.int32)
        plain, replayed = (cache.forward(*row).logits for cache in caches)
        torch.testing.assert_close(replayed, plain, atol=1e-5, rtol=1e-5)
    assert graphs_of(engines[1])._buffers.holds(caches[1].cache)
    assert tapes.replayed == 3


def test_sequences_take_turns_with_the_buffers() -> None:
    """Guards two texts at once, and the cache of a text that is done when the next one takes the buffers."""
    model = tiny_model("qwen3")
    engine, prompts = recorded(model), [IDS, IDS.flip(1)]
    texts = [plain_text(model, ids, 80) for ids in prompts]
    both = [Greedy(engine, ids, text[:40]) for ids, text in zip(prompts, texts, strict=True)]
    while active := [each for each in both if not each.ended]:
        for greedy in active:
            one_round(greedy)
    assert [greedy.ids for greedy in both] == [text[:40] for text in texts]
    for greedy, ids, text in zip(both, prompts, texts, strict=True):  # the second holds the buffers, the first a copy
        more = torch.tensor([[*ids[0].tolist(), *greedy.ids]])
        assert text_of(engine, text[40:], more, cache=greedy.cache.cache) == text[40:]


def test_nothing_of_another_text_is_read() -> None:
    """Guards rows of an earlier text that are no numbers: a weight of zero would not hide them."""
    model = tiny_model("llama")
    engine, expected = recorded(model), plain_text(model, IDS, 30)
    for rows in (*graphs_of(engine)._buffers.keys, *graphs_of(engine)._buffers.values):
        rows.fill_(torch.nan)
    assert text_of(engine, expected) == expected


def test_a_batch_shares_the_model_with_single_sequences() -> None:
    """Guards batches, whose last sequence runs alone, on the buffers."""
    model, tapes = tiny_model("llama"), Tapes()
    prompts = [IDS, IDS.flip(1), IDS[:, 3:]]
    texts = [plain_text(model, ids, 20 + 10 * place) for place, ids in enumerate(prompts)]
    assert greedy_texts(recorded(model, tapes), prompts, texts) == texts
    assert tapes.replayed


def test_inference_mode_comes_and_goes() -> None:
    """Guards torch's rule that tensors made in that mode are written only in it."""
    model = tiny_model("llama")
    with torch.inference_mode():
        engine = recorded(model)
    expected = plain_text(model, IDS, 220)
    for inference in (False, True, False):
        with torch.inference_mode(inference):
            assert text_of(engine, expected) == expected


def test_changed_weights_count_at_once() -> None:
    """Guards training between requests: what was recorded on old weights is not replayed."""
    model, tapes = tiny_model("llama"), Tapes()
    engine = recorded(model, tapes)
    text_of(engine, plain_text(model, IDS, 5))
    before = tapes.recorded
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(-1)
    expected = plain_text(model, IDS, 30)
    assert text_of(engine, expected) == expected
    assert tapes.recorded == before
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.flip(0))
    expected = plain_text(model, IDS, 30)
    assert text_of(engine, expected) == expected
    assert tapes.recorded > before


def test_hooks_that_come_later_are_run(caplog: pytest.LogCaptureFixture) -> None:
    """Guards code that a recording would leave out: that request runs plain passes, and says so; the next does not."""
    model, tapes = tiny_model("llama"), Tapes()
    engine = recorded(model, tapes)
    hook = model.model.layers[1].register_forward_hook(lambda _, __, output: -output)
    expected = plain_text(model, IDS, 30)
    with caplog.at_level(logging.WARNING):
        assert text_of(engine, expected) == expected
    assert not tapes.replayed
    assert [("hooks" in record.message, record.name) for record in caplog.records] == [
        (True, "speculant.engines.hf.cuda.graph_runner")
    ]
    hook.remove()
    expected = plain_text(model, IDS, 30)
    assert text_of(engine, expected) == expected
    assert tapes.replayed


def test_another_thread_leaves_rows_in_use_alone() -> None:
    """Guards two threads on one model: the second runs plain passes while the first one's cache is in the buffers."""
    model, tapes, found = tiny_model("llama"), Tapes(), list[list[int]]()
    engine, texts = recorded(model, tapes), [plain_text(model, ids, 30) for ids in (IDS, IDS.flip(1))]
    greedy: Greedy | None = Greedy(engine, IDS, texts[0])
    for freed in (False, True):
        if greedy is not None:
            while not greedy.ended:
                one_round(greedy)
                if greedy.rounds == 3 and not freed:
                    break
            if freed:
                assert greedy.ids == texts[0]
                greedy = None
                gc.collect()
        before = tapes.replayed
        thread = threading.Thread(target=lambda: found.append(text_of(engine, texts[1], IDS.flip(1))))
        thread.start()
        thread.join()
        assert (tapes.replayed > before) == freed
    assert found == [texts[1]] * 2


def refused(change: Callable[[Any], object]) -> Any:
    model = tiny_model("llama")
    change(model)
    return model


def adapted(model: Any) -> None:
    model.lm_head.base_layer = nn.Identity()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.train(), "training"),
        (lambda model: model.lm_head.register_forward_hook(lambda *_: None), "hooks"),
        (lambda model: setattr(model.lm_head, "forward", lambda hidden: hidden), "hooks"),
        (lambda model: setattr(model, "_orig_mod", None), "compiled"),
        (adapted, "adapter"),
    ],
)
def test_what_a_recording_would_miss_is_refused(change: Callable[[Any], object], reason: str) -> None:
    """Guards settings that a recording would freeze or leave out."""
    with pytest.raises(GraphError, match=reason):
        GraphRunner(refused(change), Tapes)


def test_models_without_trees_are_refused() -> None:
    """Guards models that take no mask or no positions."""
    with pytest.raises(GraphError, match="chains only"):
        GraphRunner(tiny_model("bloom"), Tapes)


def test_a_pass_that_waits_for_the_device_is_refused() -> None:
    """Guards models whose forward looks at numbers, which CUDA cannot record."""
    model = tiny_model("llama")

    class Looking(nn.Identity):
        """Looks at its input."""

        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return input * input.sum().item()

    model.model.norm = nn.Sequential(model.model.norm, Looking())
    with pytest.raises(GraphError, match="waits for the device"):
        GraphRunner(model, Tapes)


def test_a_device_that_cannot_record_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the fallback of `fast=True` on CUDA: plain passes and one line; unasked, not even that."""
    model = tiny_model("llama")
    with pytest.raises(GraphError, match=r"device is full$"):
        GraphRunner(model, failing)
    with pytest.raises(GraphError):
        GraphRunner(model)  # CUDA graphs on a CPU
    monkeypatch.setattr("speculant.engines.hf.cpu.accelerate.GraphRunner", refusing)
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    assert prepare_model(model, True).notes == ("not prepared for fast passes: the device is full.",)
    assert prepare_model(model, None) == prepare_model(model, False) == Acceleration()


def failing() -> Tapes:
    tapes = Tapes()
    tapes.fail_recording = True
    return tapes


def refusing(model: Any) -> GraphRunner:
    raise GraphError("the device is full")


def test_prepared_models_replay_on_cuda_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the default: nothing is recorded on a CPU, nor on CUDA unless asked for."""
    model, graphs = tiny_model("llama"), GraphRunner(tiny_model("llama"), Tapes)
    assert all(prepare_model(model, fast).graphs is None for fast in (None, True, False))
    monkeypatch.setattr("speculant.engines.hf.cpu.accelerate.GraphRunner", lambda _: graphs)
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    assert prepare_model(model, True).graphs is graphs
    assert prepare_model(model, None).graphs is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", MODELS)
def test_cuda_graphs_give_the_text_of_plain_decoding(name: str) -> None:
    """Guards the recording itself, where there is a device for it; runs nowhere else."""
    model = tiny_model(name).cuda()
    engine, ids = HFEngine(model, acceleration=prepare_model(model, True)), IDS.cuda()
    expected = plain_text(model, ids, 220)
    assert text_of(engine, expected, ids) == expected
    graphs = graphs_of(engine)
    assert not graphs._failed
    assert len({length for _, length in graphs._replays}) > 1


@pytest.mark.parametrize("capacity", [LEAST_LENGTH, 512])
def test_a_recording_that_fails_later_is_said_once(capacity: int, caplog: pytest.LogCaptureFixture) -> None:
    """Guards a device that gets full in the middle of a text: plain passes go on where the others stopped."""
    model, tapes = tiny_model("llama"), Tapes()
    engine, expected = recorded(model, tapes, capacity=capacity), plain_text(model, IDS, 220)
    tapes.fail_recording = True
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert text_of(engine, expected) == expected
    assert tapes.replayed
    assert [record.message for record in caplog.records] == ["plain passes from now on: the device is full."]


def test_lengths_are_few_and_large_enough() -> None:
    """Guards the shapes: every length has room, at most half as much again, and few of them cover long texts."""
    lengths = [length_bucket(rows) for rows in range(1, 5000)]
    assert all(rows <= length for rows, length in enumerate(lengths, 1))
    assert all(2 * length <= 3 * rows for rows, length in enumerate(lengths, 1) if length > LEAST_LENGTH)
    assert sorted(set(lengths)) == [256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144]
