"""One sequence on a transformers model: what is committed, growth of drafts, prompts in pieces, limits, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, QuantizedCache, StaticCache

from models import deep_model, hybrid_model, tiny_model
from pairwise import in_turn
from passes import IDS, Greedy, greedy_texts, opened, plain_text, rows_of
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import OutOfMemoryError, UnsupportedError, UsageError
from speculant.core.tree import DraftTree
from speculant.engines.hf.acceleration import PlainPasses
from speculant.engines.hf.cache import usable_cache
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.target_cache import HFTargetCache
from trees import make_tree, random_draft

MODELS = [("llama", "sdpa"), ("llama", "eager"), ("gemma3", "sdpa"), ("gemma3", "eager"), ("mistral", "sdpa")]
MODELS += [("gpt2", "sdpa"), ("phi3", "sdpa"), ("gpt_neox", "sdpa"), ("mixtral", "sdpa")]


def assert_same_cache(cache: HFTargetCache, model: Any, text: list[int]) -> None:
    alone = DynamicCache()
    with torch.no_grad():
        model(torch.tensor([text]), past_key_values=alone)
    assert cache.length == cache.cache.get_seq_length() == len(text)
    for kept, expected in zip(cache.cache.layers, alone.layers, strict=True):
        torch.testing.assert_close(kept.keys, expected.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(kept.values, expected.values, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("path", [[], [0], [0, 1], [2], [2, 3]])
def test_rows_of_root_and_path_are_kept(path: list[int]) -> None:
    """Guards rollback: the cache is the one that a pass over the committed tokens alone would have left."""
    tree, model = make_tree([7, 8, 9, 10], [-1, 0, -1, 2]), tiny_model("llama")
    engine = HFEngine(model)
    cache = opened(engine)
    engine.forward([(cache, 4, tree)])
    cache.keep([0, *(node + 1 for node in path)])
    assert_same_cache(cache, model, [*IDS[0].tolist(), 4, *tree.tokens[path].tolist()])


@pytest.mark.parametrize(("name", "attention", "padded"), in_turn(MODELS, [False, True], whole=1))
def test_a_tree_grown_in_pieces_gives_the_logits_of_one_pass(name: str, attention: str, padded: bool) -> None:
    """Guards masks and positions of rows that follow rows which are not committed, windows included."""
    model = tiny_model(name, attention)
    engine, random = HFEngine(model), np.random.default_rng(3)
    padding = torch.tensor([[0, 0, 0, *[1] * 9]]) if padded else None
    cache = opened(engine, padding=padding)
    for size in (1, 3, 7):
        tree = random_draft(random, 16, 61)
        tokens, parents = rows_of(7, tree)
        [whole] = engine.forward([(cache, 7, tree)])
        cache.rollback()
        pieces = [
            cache.forward(tokens[start : start + size], parents[start : start + size]).logits
            for start in range(0, len(tokens), size)
        ]
        torch.testing.assert_close(torch.cat(pieces), whole.logits, atol=1e-4, rtol=1e-4)
        cache.keep([0, *(tree.path(len(tree) - 1) + 1)])


def test_grown_rows_are_kept_or_dropped() -> None:
    """Guards a path through rows of several passes, and a rollback that leaves only what is committed."""
    model = tiny_model("llama")
    cache = opened(HFEngine(model))
    text = IDS[0].tolist()
    cache.forward(np.array([20, 21], np.int32), np.array([-1, -1], np.int32))
    cache.forward(np.array([22, 23], np.int32), np.array([1, 0], np.int32))
    cache.forward(np.array([24], np.int32), np.array([2], np.int32))
    assert cache.uncommitted == 5
    assert cache.length == len(text)
    cache.rollback()
    assert_same_cache(cache, model, text)
    cache.forward(np.array([20, 21], np.int32), np.array([-1, -1], np.int32))
    cache.forward(np.array([22, 23], np.int32), np.array([1, 0], np.int32))
    cache.keep([1, 2])
    assert_same_cache(cache, model, [*text, 21, 22])
    with pytest.raises(ValueError, match="not a path"):
        cache.keep([0])


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "bloom"])
@pytest.mark.parametrize("given", [0, 5])
def test_a_prompt_read_in_pieces_is_the_whole(name: str, given: int) -> None:
    """Guards chunked prefill, of what a given cache does not hold yet."""
    model = tiny_model(name)
    engine = HFEngine(model)
    cache = None
    if given:
        cache = DynamicCache()
        with torch.no_grad():
            model(IDS[:, :given], past_key_values=cache)
    sequence = engine.open(IDS, cache=cache)
    unread, result = [sequence.unread], None
    while result is None:
        result = sequence.prefill(4, needs=RequestedOutputs(top_k=3))
        unread.append(sequence.unread)
    assert unread == ([12, 8, 4, 0] if not given else [7, 3, 0])
    with torch.no_grad():
        expected = model(IDS).logits[0, -1:]
    torch.testing.assert_close(result.logits, expected, atol=1e-4, rtol=1e-4)
    assert result.top_ids.tolist() == expected.topk(3).indices.tolist()
    assert_same_cache(sequence, model, IDS[0].tolist())
    with pytest.raises(UsageError, match="already been read"):
        sequence.prefill()


@pytest.mark.parametrize(("hybrid", "passes"), [(False, 3), (True, 1)])
def test_prompts_are_read_in_passes_of_the_size_that_suits_the_device(*, hybrid: bool, passes: int) -> None:
    """Guards long prompts on CPUs: one call, several passes, the states of all tokens; recurrent models read in one."""
    model, needs = hybrid_model() if hybrid else tiny_model("llama"), RequestedOutputs(hidden_layers=(1,), prompt=True)
    whole = HFEngine(model).open(IDS).prefill(needs=needs)
    engine, seen = HFEngine(model, acceleration=PlainPasses(prompt_rows=4)), list[object]()
    model.register_forward_hook(lambda *_: seen.append(None))
    cache = engine.open(IDS)
    found = cache.prefill(needs=needs)
    assert len(seen) == passes
    assert not cache.unread
    torch.testing.assert_close(found.logits, whole.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.hidden, whole.hidden, atol=1e-4, rtol=1e-4)
    part = engine.open(IDS)
    assert part.prefill(6) is None
    assert part.unread == 6


def test_a_prefill_that_fails_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a piece of a prompt that does not fit: what was read before stays, and nothing else."""
    model = tiny_model("llama")
    sequence = HFEngine(model).open(IDS)
    sequence.prefill(5)
    layer = model.model.layers[1]
    with monkeypatch.context() as patch:
        patch.setattr(layer.mlp, "forward", failing)
        with pytest.raises(OutOfMemoryError):
            sequence.prefill(5)
    assert sequence.length == 5
    assert {each.get_seq_length() for each in sequence.cache.layers} == {5}
    assert sequence.prefill() is not None
    assert_same_cache(sequence, model, IDS[0].tolist())
    sequence.restart()
    assert (sequence.length, sequence.unread) == (0, 12)
    assert sequence.prefill() is not None
    assert_same_cache(sequence, model, IDS[0].tolist())


def failing(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_pass_that_fails_appends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the rows of earlier passes when a later one does not fit, and the message."""
    model = tiny_model("llama")
    cache = opened(HFEngine(model))
    one = np.array([4], np.int32), np.array([-1], np.int32)
    cache.forward(*one)
    with monkeypatch.context() as patch:
        patch.setattr(model.model.layers[1].mlp, "forward", failing)
        with pytest.raises(OutOfMemoryError, match="fewer nodes"):
            cache.forward(np.array([5], np.int32), np.array([0], np.int32))
    assert {each.get_seq_length() for each in cache.cache.layers} == {13}
    cache.forward(np.array([5], np.int32), np.array([0], np.int32))
    cache.keep([0, 1])
    assert_same_cache(cache, model, [*IDS[0].tolist(), 4, 5])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_no_draft_reaches_beyond_the_models_positions(name: str) -> None:
    """Guards tables of positions: texts that fill them to the last place are those of plain decoding."""
    model = tiny_model(name, **({} if name == "gpt2" else {"max_position_embeddings": 256}))
    engine = HFEngine(model)
    ids = torch.arange(230).remainder(50).add(3)[None]
    text = plain_text(model, ids, 26)
    assert opened(engine, ids).depth == 25
    assert greedy_texts(engine, [ids], [text]) == [text]
    full = opened(engine, torch.arange(255).remainder(50).add(3)[None])
    assert full.depth == 0
    full.forward(np.array([4], np.int32), np.array([-1], np.int32))
    full.keep([0])
    assert full.depth == 0


def test_depth_is_unlimited_without_a_table() -> None:
    """Guards models that have positions for any text."""
    assert opened(HFEngine(tiny_model("bloom"))).depth > 1 << 20


def test_models_without_trees_verify_chains_and_refuse_branches() -> None:
    """Guards ALiBi models, whose positions cannot be given."""
    model = tiny_model("bloom")
    engine = HFEngine(model)
    cache = opened(engine)
    with pytest.raises(UnsupportedError, match="chains only"):
        engine.forward([(cache, 4, make_tree([5, 6], [-1, -1]))])
    with pytest.raises(UnsupportedError, match="layers cannot be left out"):
        cache.forward(np.array([4], np.int32), np.array([-1], np.int32), layers=[0])
    [whole] = engine.forward([(cache, 4, make_tree([5, 6], [-1, 0]))])
    cache.rollback()
    pieces = [
        cache.forward(np.array([token], np.int32), np.array([row - 1], np.int32))
        for row, token in ((0, 4), (1, 5), (2, 6))
    ]
    torch.testing.assert_close(torch.cat([each.logits for each in pieces]), whole.logits, atol=1e-4, rtol=1e-4)
    cache.keep([0, 1])
    assert_same_cache(cache, model, [*IDS[0].tolist(), 4, 5])


@pytest.mark.parametrize("token", [-1, 61])
def test_tokens_that_the_model_lacks_are_refused(token: int) -> None:
    """Guards the embedding table from a drafter's mistakes, before anything is run."""
    engine = HFEngine(tiny_model("llama"))
    caches = [opened(engine), opened(engine)]
    with pytest.raises(UsageError, match=f"token {token}; the model has 61"):
        engine.forward([(caches[0], 4, DraftTree.empty()), (caches[1], 4, make_tree([token], [-1]))])
    assert [cache.uncommitted for cache in caches] == [0, 0]


def test_a_cache_that_was_used_elsewhere_is_refused() -> None:
    """Guards two requests that share a cache."""
    model = tiny_model("llama")
    cache = opened(HFEngine(model))
    model(IDS[:, :1], past_key_values=cache.cache)
    with pytest.raises(UsageError, match="used elsewhere"):
        cache.forward(np.array([4], np.int32), np.array([-1], np.int32))


def test_a_released_sequence_holds_nothing() -> None:
    """Guards memory: whoever keeps a finished request does not keep its keys and values."""
    cache = opened(HFEngine(tiny_model("llama")))
    cache.release()
    cache.rollback()
    assert cache.length == cache.cache.get_seq_length() == 0


@pytest.mark.parametrize(
    "name", ["gemma3", "bloom", *(pytest.param(n, marks=pytest.mark.slow) for n in ("llama", "gpt2"))]
)
def test_a_cache_goes_on_in_plain_generate(name: str) -> None:
    """Guards what users get back: a text decoded by rounds, longer than a buffer, continues in `generate`."""
    model = tiny_model(name)
    expected = plain_text(model, IDS, 140)
    greedy = Greedy(HFEngine(model), IDS, expected[:120])
    while not greedy.ended:
        tree = greedy.draft()
        greedy.commit(tree, greedy.engine.forward([(greedy.cache, greedy.ids[-1], tree)])[0].logits)
    assert greedy.ids == expected[:120]
    assert greedy.rounds < 110
    ids = torch.tensor([IDS[0].tolist() + greedy.ids])
    assert plain_text(model, ids, 20, past_key_values=greedy.cache.cache) == expected[120:]


def test_sliding_caches_are_replaced_by_growing_ones() -> None:
    """Guards windows: a sliding layer forgets rows that a rollback needs."""
    config = tiny_model("gemma3").config
    assert not any(usable_cache(DynamicCache(config=config)).is_sliding)


@pytest.mark.parametrize("kind", [StaticCache, QuantizedCache])
def test_other_caches_are_refused(kind: type) -> None:
    """Guards caches without rollback."""
    with pytest.raises(UnsupportedError, match="DynamicCache"):
        usable_cache(object.__new__(kind))


def test_a_filled_sliding_cache_is_refused() -> None:
    """Guards a cache that has already forgotten rows."""
    model = tiny_model("gemma3")
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(IDS, past_key_values=cache)
    with pytest.raises(UnsupportedError, match="rolled back"):
        usable_cache(cache)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_a_lora_adapter_is_part_of_the_target() -> None:
    """Guards PEFT: the adapter's text, not the base model's, also in batches and with hidden states."""
    peft = pytest.importorskip("peft")
    model = deep_model("llama")
    plain = plain_text(model, IDS, 20)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    prompts = [IDS, IDS[:, :5]]
    expected = [
        adapted.generate(input_ids=ids, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)[
            0, ids.shape[1] :
        ].tolist()
        for ids in prompts
    ]
    assert plain != expected[0]
    engine = HFEngine(adapted)
    assert greedy_texts(engine, prompts, expected) == expected
    cache = opened(engine)
    [result] = engine.forward([(cache, 4, DraftTree.empty())], RequestedOutputs(hidden_layers=(0, 2)))
    assert result.hidden.shape == (1, 2, 32)


def test_a_spread_model_is_decoded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Guards `device_map`: layers offloaded to disk run through accelerate's hooks, in batches and with taps too."""
    accelerate = pytest.importorskip("accelerate")
    model = deep_model("llama")
    prompts = [IDS, IDS[:, :5]]
    expected = [plain_text(model, ids, 12) for ids in prompts]
    needs, whole = RequestedOutputs(hidden_layers=(0, 1, 2)), HFEngine(model)
    [hidden] = whole.forward([(opened(whole), 4, DraftTree.empty())], needs)
    places = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
    places |= {"model.layers.2": "cpu", "model.norm": "cpu", "lm_head": "cpu"}
    folder = str(tmp_path_factory.mktemp("offload"))
    spread = accelerate.dispatch_model(model, places, offload_dir=folder, main_device="cpu", force_hooks=True)
    engine = HFEngine(spread)
    assert greedy_texts(engine, prompts, expected) == expected
    assert not engine.batch_note
    assert any("several devices" in note for note in engine.notes)
    [result] = engine.forward([(opened(engine), 4, DraftTree.empty())], needs)
    torch.testing.assert_close(result.hidden, hidden.hidden)
