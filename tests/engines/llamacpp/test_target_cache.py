"""The cache of a GGUF model: trees give the logits of one token at a time, and nothing is left of what is dropped."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
import torch

from ggufs import needs_llamacpp, open_engine, tiny_gguf
from models import VOCABULARY, deep_model
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import ModelError, OutOfMemoryError, UnsupportedError, UsageError
from speculant.core.tree import DraftTree
from speculant.engines.llamacpp.engine import LlamaEngine

pytestmark = pytest.mark.peers

PROMPT = [3, 4, 5, 6, 3, 4]
TREE = DraftTree.from_paths([[7, 8, 9], [7, 10], [11, 12]])
CLOSE = 1e-4


@pytest.fixture(scope="module")
def engine() -> Any:
    """Return the engine of the tiny model."""
    needs_llamacpp()
    return open_engine(tiny_gguf())


@pytest.fixture(scope="module")
def reference() -> Any:
    """Return transformers' logits [V] after a text."""
    model = deep_model("llama")

    def after(text: list[int]) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model(torch.tensor([text])).logits[0, -1]
        return found

    return after


def opened(engine: Any, prompt: list[int] = PROMPT, **options: Any) -> Any:
    """Return a cache whose prompt is read."""
    cache = engine.open(torch.tensor([prompt]), **options)
    cache.prefill()
    return cache


def texts_of(tree: DraftTree, root: int) -> list[list[int]]:
    """Return the text up to each row of a pass."""
    tokens, parents = tree.rows(root)
    texts: list[list[int]] = []
    for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
        texts.append([*(texts[parent] if parent >= 0 else PROMPT), token])
    return texts


def test_a_tree_in_one_pass(engine: Any, reference: Any) -> None:
    """Every row has the logits of its own path, and `top_k` those of its best tokens."""
    cache = opened(engine)
    found = engine.forward([(cache, 2, TREE)], RequestedOutputs(top_k=3))[0]
    for row, text in enumerate(texts_of(TREE, 2)):
        expected = reference(text)
        assert (found.logits[row] - expected).abs().max() < CLOSE
        assert found.top_ids[row].tolist() == expected.topk(3).indices.tolist()
    cache.rollback()


def test_a_tree_by_levels(engine: Any, reference: Any) -> None:
    """Rows appended in several passes, first children and later ones, see their own ancestors only."""
    cache = opened(engine)
    tokens, parents = TREE.rows(2)
    order = np.array([0, 1, 5, 2, 4, 6, 3])  # the root, then its children, then what is below
    place = {int(row): at for at, row in enumerate(order)}
    new_parents = np.array([place.get(int(parents[row]), -1) for row in order], np.int32)
    texts = texts_of(TREE, 2)
    assert sorted(place) == list(range(len(tokens)))
    for begin, end in ((0, 1), (1, 3), (3, 6), (6, 7)):
        logits = cache.forward(tokens[order[begin:end]], new_parents[begin:end]).logits
        for row, found in zip(order[begin:end], logits, strict=True):
            assert (found - reference(texts[row])).abs().max() < CLOSE
    cache.keep([0, place[1], place[4]])
    assert cache.text.tokens == [*PROMPT, 2, 7, 10]
    again = cache.forward(np.array([12], np.int32), np.array([-1], np.int32)).logits[0]
    assert (again - reference([*PROMPT, 2, 7, 10, 12])).abs().max() < CLOSE
    cache.rollback()


@pytest.mark.parametrize("path", [[], [0], [0, 1], [0, 1, 2], [0, 3], [0, 1, 4], [0, 5], [0, 5, 6]])
def test_kept_rows_are_the_text(path: list[int], engine: Any, reference: Any) -> None:
    """Whatever path is kept, on the first branch or another, the next pass goes on from it."""
    cache = opened(engine)
    tree = DraftTree.from_paths([[7, 8], [7, 9, 10], [11, 12]])  # rows: 0 root, 1 7, 2 8, 3 9, ... in order of paths
    tokens, parents = tree.rows(2)
    try:
        cache.forward(tokens, parents)
        above = -1
        for row in path:
            if parents[row] != above:
                with pytest.raises(ValueError, match="not a path"):
                    cache.keep(path)
                return
            above = row
        cache.keep(path)
        text = [*PROMPT, *(int(tokens[row]) for row in path)]
        assert cache.length == len(text)
        found = cache.forward(np.array([13, 14], np.int32), np.array([-1, 0], np.int32)).logits
        assert (found[1] - reference([*text, 13, 14])).abs().max() < CLOSE
    finally:
        cache.rollback()


def test_prompts_are_read_in_chunks(engine: Any, reference: Any) -> None:
    """Only the last chunk returns a pass; a prompt begins anew after `restart`."""
    cache = engine.open(torch.tensor([PROMPT]))
    assert cache.prefill(2) is None
    assert (cache.length, cache.unread) == (2, 4)
    assert cache.prefill(3) is None
    found = cache.prefill(5)
    assert (found.logits[0] - reference(PROMPT)).abs().max() < CLOSE
    with pytest.raises(UsageError, match="already been read"):
        cache.prefill()
    cache.restart()
    assert (cache.length, cache.unread) == (0, 6)
    assert (cache.prefill().logits[0] - reference(PROMPT)).abs().max() < CLOSE
    cache.release()
    assert (cache.length, cache.unread) == (0, 0)


def test_several_sequences_in_a_pass(engine: Any, reference: Any) -> None:
    """Texts do not see each other, and each goes on from its own path."""
    one, two = opened(engine), opened(engine, [9, 8, 7])
    passes = engine.forward([(one, 2, TREE), (two, 5, DraftTree.from_paths([[6, 7], [8]]))])
    assert [len(each.logits) for each in passes] == [7, 4]
    assert (passes[0].logits[6] - reference([*PROMPT, 2, 11, 12])).abs().max() < CLOSE
    assert (passes[1].logits[3] - reference([9, 8, 7, 5, 8])).abs().max() < CLOSE
    one.keep([0, 5])
    two.keep([0, 3])
    for cache, text in ((one, [*PROMPT, 2, 11]), (two, [9, 8, 7, 5, 8])):
        found = engine.forward([(cache, 4, DraftTree.empty())])[0].logits[0]
        assert (found - reference([*text, 4])).abs().max() < CLOSE
        cache.rollback()


def test_wide_passes_are_split(reference: Any) -> None:
    """More rows than llama.cpp takes at once are run in several passes, with the same logits."""
    engine = open_engine(tiny_gguf(), sequences=256, cache_tokens=1200)
    caches = [opened(engine) for _ in range(6)]
    wide = DraftTree.from_paths([[token % VOCABULARY, token // VOCABULARY] for token in range(90)])
    passes = engine.forward([(cache, 2, wide) for cache in caches[:1]])
    long = DraftTree.from_paths([list(np.arange(100) % 50)])
    passes += engine.forward([(cache, 2, long) for cache in caches[1:]] + [])
    assert [len(each.logits) for each in passes] == [len(wide) + 1, *[101] * 5]
    expected = reference([*PROMPT, 2, *(np.arange(100) % 50).tolist()])
    for each in passes[1:]:
        assert (each.logits[-1] - expected).abs().max() < 1e-3
    for cache in caches:
        cache.rollback()
    many = DraftTree.from_paths([list(np.arange(600) % 50)])
    large = open_engine(tiny_gguf(), cache_tokens=1200)
    cache = opened(large)
    assert len(large.forward([(cache, 2, many)])[0].logits) == 601


@pytest.mark.parametrize("fault", ["full", "memory", "failure", "interrupt"])
def test_a_pass_that_fails(fault: str, engine: Any, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches are as before the round, whatever llama.cpp returns, also in the middle of a tree."""
    cache = opened(engine)
    tokens, parents = TREE.rows(2)
    cache.forward(tokens[:2], parents[:2])
    api = engine.context._api
    decode, free = api.llama_decode, len(engine.context._free_ids)
    codes = {"full": 1, "memory": -2, "failure": -3}

    def fail(*given: Any) -> int:
        if fault == "interrupt":
            decode(*given)
            raise KeyboardInterrupt
        return codes[fault]

    errors = {
        "full": OutOfMemoryError,
        "memory": OutOfMemoryError,
        "failure": ModelError,
        "interrupt": KeyboardInterrupt,
    }
    with monkeypatch.context() as patched:
        patched.setattr(api, "llama_decode", fail)
        with pytest.raises(errors[fault]):
            cache.forward(tokens[2:], parents[2:])
    assert cache.uncommitted == 2
    assert len(engine.context._free_ids) >= free  # a full cache makes idle texts leave
    found = cache.forward(tokens[2:], parents[2:]).logits
    assert (found[-1] - reference([*PROMPT, 2, 11, 12])).abs().max() < CLOSE
    cache.rollback()
    unread = engine.open(torch.tensor([PROMPT]))
    with monkeypatch.context() as patched:
        patched.setattr(api, "llama_decode", fail)
        with pytest.raises(errors[fault]):
            unread.prefill()
    assert unread.unread == len(PROMPT)
    assert (unread.prefill().logits[0] - reference(PROMPT)).abs().max() < CLOSE


def test_a_full_cache(reference: Any) -> None:
    """Texts that nobody decodes leave it and are read again; where those of a pass do not fit, it is refused."""
    engine = open_engine(tiny_gguf(), context=256, cache_tokens=40)
    prompts = [[(7 * text + place) % VOCABULARY for place in range(200)] for text in range(4)]
    caches = [opened(engine, prompt) for prompt in prompts]
    assert sum(cache.text.sequence is not None for cache in caches) == 3
    for cache, prompt in zip(caches, prompts, strict=True):
        found = engine.forward([(cache, 2, DraftTree.empty())])[0].logits[0]
        assert (found - reference([*prompt, 2])).abs().max() < CLOSE
        cache.keep([0])
    with pytest.raises(OutOfMemoryError, match="raise cache_tokens"):
        engine.forward([(cache, 2, TREE) for cache in caches])
    for cache, prompt in zip(caches, prompts, strict=True):
        cache.rollback()
        found = engine.forward([(cache, 3, DraftTree.empty())])[0].logits[0]
        assert (found - reference([*prompt, 2, 3])).abs().max() < CLOSE
        cache.keep([0])


def test_texts_that_nobody_holds_are_removed() -> None:
    """Ids come back by themselves, and by eviction where texts are held."""
    engine = open_engine(tiny_gguf(), sequences=4)
    for _ in range(5):
        opened(engine)
        gc.collect()
    held = [opened(engine) for _ in range(10)]
    assert sum(cache.text.sequence is not None for cache in held) == 4
    with pytest.raises(UnsupportedError, match="branches into 4 more sequences, but 3 are free"):
        engine.forward([(held[0], 2, DraftTree.from_paths([[token] for token in range(5)]))])
    held[0].rollback()
    assert len(engine.forward([(held[0], 2, DraftTree.from_paths([[4], [5], [6]]))])[0].logits) == 4


def test_a_next_turn_goes_on(engine: Any, reference: Any) -> None:
    """A text's rows serve a longer prompt; another prompt, engine or kind of cache is refused."""
    cache = opened(engine)
    text = cache.cache
    longer = [*PROMPT, 8, 9]
    again = engine.open(torch.tensor([longer]), cache=text)
    assert again.unread == 2
    assert (again.prefill().logits[0] - reference(longer)).abs().max() < CLOSE
    with pytest.raises(UsageError, match="used elsewhere meanwhile"):
        cache.forward(np.array([1], np.int32), np.array([-1], np.int32))
    engine.crop(text, 3)
    other = [*PROMPT[:3], 20, 21]
    assert (
        opened(engine, other, cache=text).forward(np.array([7], np.int32), np.array([-1], np.int32)).logits[0]
        - reference([*other, 7])
    ).abs().max() < CLOSE
    with pytest.raises(UsageError, match="being decoded"):
        engine.open(torch.tensor([[*other, 7, 8]]), cache=text)
    with pytest.raises(UsageError, match="being decoded"):
        text.crop(0)
    with pytest.raises(UsageError, match="does not begin with"):
        engine.open(torch.tensor([[1, 2, 3]]), cache=opened(engine).cache)
    with pytest.raises(UnsupportedError, match="another model"):
        engine.open(torch.tensor([PROMPT]), cache=opened(open_engine(tiny_gguf()), PROMPT[:2]).cache)
    with pytest.raises(UnsupportedError, match="a dict is not a cache of llama"):
        engine.open(torch.tensor([PROMPT]), cache={})


def test_what_llama_cpp_does_not_do_is_refused(engine: Any) -> None:
    """Hidden states, subsets of layers, foreign embeddings, padding, positions and tokens are refused by name."""
    cache = opened(engine)
    row, root = np.array([1], np.int32), np.array([-1], np.int32)
    for call in (
        lambda: cache.forward(row, root, layers=[0]),
        lambda: cache.forward(row, root, embeddings=torch.zeros(1, 4)),
        lambda: cache.reread(row, [0]),
        lambda: cache.forward(row, root, needs=RequestedOutputs(hidden_layers=(0,))),
        lambda: cache.layer_rows(0),
        lambda: engine.open(torch.tensor([PROMPT]), padding=torch.tensor([[0, 1, 1, 1, 1, 1]])),
        lambda: engine.open(torch.tensor([PROMPT]), positions=torch.tensor([[5, 6]])),
    ):
        with pytest.raises(UnsupportedError):
            call()
    engine.open(torch.tensor([PROMPT]), padding=torch.ones(1, 6), positions=torch.arange(6)[None])
    with pytest.raises(UsageError, match=f"token {VOCABULARY}; the model has {VOCABULARY}"):
        cache.check(DraftTree.from_paths([[VOCABULARY]]))


def test_another_thread_is_refused(engine: Any) -> None:
    """In the middle of a round its pass would overwrite the logits."""
    one, two = opened(engine), opened(engine)
    engine.forward([(one, 2, TREE)])
    errors: list[BaseException] = []

    def run() -> None:
        try:
            engine.context.decode(None, [])
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "another thread" in str(errors[0])
    one.rollback()
    two.release()


def test_trees_are_probed(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose trees return other logits than one token at a time is refused, or decoded plainly."""
    engine.probe()
    fresh = open_engine(tiny_gguf())
    run = type(fresh.context).decode
    monkeypatch.setattr(
        type(fresh.context), "decode", lambda self, rows, keep: run(self, rows, keep) * (1.0 + (len(rows) > 1))
    )
    with pytest.raises(UnsupportedError, match="differ by"):
        fresh.probe()
    lenient = LlamaEngine(fresh.model, fresh.context, strict=False)
    lenient.probe()
    assert not lenient.capabilities.drafts
    assert "decoded plainly, without drafts" in lenient.notes[-1]


def test_prompts_of_several_texts_in_one_pass(engine: Any, reference: Any) -> None:
    """Each text has the logits of its own prompt, whole or in parts, and can be read again after a failure."""
    prompts = [PROMPT, [7, 3], [9, 8, 7, 6, 5, 4, 3]]
    caches = [engine.open(torch.tensor([prompt])) for prompt in prompts]
    first = engine.prefill([(cache, 4) for cache in caches])
    assert [found is None for found in first] == [True, False, True]
    caches[0].restart()
    last = engine.prefill([(caches[0], None), (caches[2], None)])
    for found, prompt in ((first[1], prompts[1]), (last[0], prompts[0]), (last[1], prompts[2])):
        assert (found.logits[0] - reference(prompt)).abs().max() < CLOSE
