"""Drafts by a subset of the target's layers: the text, the distributions they are drawn from, and the lent cache."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from models import deep_model, truncated
from pairwise import in_turn
from speculant import Speculator
from speculant.core.drafter import Budget, SessionRequest, Verified
from speculant.core.sampler import Sampling
from speculant.core.sublayers import Sublayers
from speculant.core.tree import DraftTree
from speculant.drafters.layers.guesses import Guesses
from speculant.drafters.layers.session import LayerSession
from speculant.drafters.models.shapes import Chain, Shape
from speculant.drafters.models.tree_acceptance import LevelAcceptance
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.target_cache import HFTargetCache
from speculant.engines.hf.views.model_view import find_layers

METHODS = ["layer-skip", "swift", "early-exit", "ppd", "speed"]
PROMPTS = [[5, 9, 14, 3, 8], [11] * 9]
TEXT = [5, 9, 14, 3, 8, 21, 40]
CHAIN = Budget(nodes=4, depth=4, trees=False)


def plain_texts(model: Any, tokens: int) -> list[list[int]]:
    """Return the target's own greedy continuations of the prompts."""
    options: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False}
    ids = [torch.tensor([each]) for each in PROMPTS]
    return [
        model.generate(each, attention_mask=torch.ones_like(each), **options)[0, each.shape[1] :].tolist()
        for each in ids
    ]


def opened(model: Any, layers: tuple[int, ...], shape: Shape, sampling: Sampling) -> tuple[LayerSession, HFTargetCache]:
    """Return a session after a text, whose last token is the root, and the cache."""
    cache = HFEngine(model).open(torch.tensor([TEXT[:-1]]))
    cache.prefill()
    prompt = np.array(TEXT[:-1], np.int32)
    session = LayerSession(SessionRequest(prompt=prompt, sampling=sampling, target=cache), Sublayers.of(layers), shape)
    nothing = np.empty(0, np.int32)
    session.observe(Verified(tree=DraftTree.empty(), path=nothing, tokens=np.array(TEXT[-1:], np.int32)))
    return session, cache


@pytest.mark.parametrize(("name", "method"), in_turn(["llama", "mistral", "gemma3", "gpt2"], METHODS, whole=1))
def test_greedy_tokens_are_the_targets(name: str, method: str) -> None:
    """Guards every method alone and in a batch, with windows, and on the library's own CPU passes."""
    model = deep_model(name)
    plain = plain_texts(model, 16)
    speculator = Speculator.from_transformers(model, method=method, nodes=6)
    results = [speculator.generate(each, max_new_tokens=16, temperature=0) for each in PROMPTS]
    results += speculator.generate_batch(PROMPTS, size=2, max_new_tokens=16, temperature=0)
    assert [each.ids for each in results] == plain * 2
    assert sum(each.stats.drafted for each in results) > 20


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_drafts_without_sublayers(name: str) -> None:
    """Guards split layers in drafts: greedy tokens alone and in a batch, on compiled layers and on views."""
    model, settings = deep_model(name), {"skipped": "attention 1; mlp 0,2", "threshold": 0.0}
    speculator = Speculator.from_transformers(model, method="layer-skip", nodes=4, settings=settings, fast=True)
    results = [speculator.generate(each, max_new_tokens=16, temperature=0) for each in PROMPTS]
    results += speculator.generate_batch(PROMPTS, size=2, max_new_tokens=16, temperature=0)
    assert [each.ids for each in results] == plain_texts(model, 16) * 2
    assert sum(each.stats.drafted for each in results) > 20


@pytest.mark.parametrize("method", METHODS)
def test_sizes_and_passes_of_transformers(method: str) -> None:
    """Guards automatic sizes, and passes that are not accelerated."""
    model = deep_model("llama", num_hidden_layers=5)
    speculator = Speculator.from_transformers(model, method=method, fast=False)
    texts = [speculator.generate(each, max_new_tokens=20, temperature=0).ids for each in PROMPTS]
    assert texts == plain_texts(model, 20)


@pytest.mark.parametrize("method", METHODS)
def test_sampled_texts_follow_their_seed(method: str) -> None:
    """Guards sampling: a seed gives a text again, whatever was decoded before."""
    speculator = Speculator.from_transformers(
        deep_model("gpt2"), method=method, nodes=5, settings={"window": 8} if method == "swift" else None
    )
    options: dict[str, Any] = {"max_new_tokens": 16, "temperature": 0.8, "seed": 3}
    first = speculator.generate(PROMPTS[0], **options)
    assert speculator.generate(PROMPTS[0], **options).ids == first.ids
    assert first.stats.drafted > 0


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        pytest.param("layer-skip", None, marks=pytest.mark.slow),
        pytest.param("layer-skip", {"skipped": "attention 1; mlp 0,2"}, marks=pytest.mark.slow),
        ("early-exit", None),
    ],
)
def test_the_distribution_is_the_targets(method: str, settings: dict[str, Any] | None) -> None:
    """Guards sampled texts: three tokens, of which two follow from rounds with drafts, chi-square."""
    model, draws, counts = deep_model("llama"), 250, Counter[tuple[int, ...]]()
    speculator = Speculator.from_transformers(model, method=method, nodes=3, settings=settings, fast=False)
    options: dict[str, Any] = {"max_new_tokens": 3, "temperature": 1.5, "top_k": 3}
    results = speculator.generate_batch([PROMPTS[0]] * draws, size=50, seed=0, **options)
    counts.update(tuple(result.ids) for result in results)
    assert sum(result.stats.drafted for result in results) >= draws
    expected = {(): 1.0}
    for _ in range(3):
        expected = {
            (*text, token): probability * chance
            for text, probability in expected.items()
            for token, chance in three_best(model, [*PROMPTS[0], *text]).items()
        }
    assert set(counts) <= set(expected)
    likely = {text: draws * p for text, p in expected.items() if draws * p >= 5}
    chi = sum((counts[text] - mean) ** 2 / mean for text, mean in likely.items())
    rest = draws - sum(likely.values())
    if rest >= 1:  # the unlikely ones together
        chi += (draws - sum(counts[text] for text in likely) - rest) ** 2 / rest
    assert chi < len(likely) + 4 * np.sqrt(2 * len(likely))  # four standard deviations


def three_best(model: Any, text: list[int]) -> dict[int, float]:
    """Return the target's distribution after a text, at temperature 1.5 and top-k 3."""
    with torch.no_grad():
        best = (model(torch.tensor([text])).logits[0, -1] / 1.5).topk(3)
    return dict(zip(best.indices.tolist(), best.values.double().softmax(-1).tolist(), strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_drafts_end_with_the_positions(method: str) -> None:
    """Guards the end of a model's positions, which drafted rows must not pass."""
    model = deep_model("gpt2")
    speculator = Speculator.from_transformers(model, method=method, nodes=6)
    prompt = [5, 9, 14] * 82
    plain = model.generate(torch.tensor([prompt]), attention_mask=torch.ones((1, 246)), max_length=256, do_sample=False)
    assert speculator.generate(prompt, temperature=0).ids == plain[0, 246:].tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral"])
def test_early_layers_draft_as_a_shallower_model(name: str, temperature: float) -> None:
    """Guards q: row i is the warped distribution of a model that has only these layers, after the text up to node i."""
    model = deep_model(name)
    shallow = truncated(model, [0, 1])
    sampling = Sampling(temperature=temperature, top_k=20 if temperature else None)
    session, _ = opened(model, (0, 1), Chain(LevelAcceptance()), sampling)
    tree = session.propose(CHAIN)
    assert len(tree) == 4
    assert (tree.proposal is not None) == bool(temperature)
    for row in range(4):
        with torch.no_grad():
            logits = shallow(torch.tensor([[*TEXT, *tree.tokens[:row].tolist()]])).logits[0, -1]
        if tree.proposal is None:
            assert tree.tokens[row] == logits.argmax()
            continue
        scores = logits / temperature
        q = scores.masked_fill(scores < scores.topk(20).values[-1], -torch.inf).softmax(-1)
        torch.testing.assert_close(tree.proposal.q[row], q, atol=1e-5, rtol=1e-3)


def test_a_skipped_layer_hands_on_its_input() -> None:
    """Guards layers left out in the middle: the committed text has the keys of the whole model, the draft has none."""
    model = deep_model("llama", num_hidden_layers=4)
    session, _ = opened(model, (0, 2, 3), Chain(LevelAcceptance()), Sampling(temperature=1.0))
    tree = session.propose(CHAIN)
    reference = HFEngine(model).open(torch.tensor([TEXT[:-1]]))
    reference.prefill()
    place = find_layers(model)
    assert place is not None
    assert tree.proposal is not None
    handle = place.layers[1].register_forward_hook(lambda _module, given, _output: given[0])
    ids = torch.tensor([[TEXT[-1], *tree.tokens[:-1].tolist()]])
    with torch.no_grad():
        logits = model(ids, past_key_values=reference.cache, position_ids=torch.arange(6, 10)[None]).logits[0]
    handle.remove()
    torch.testing.assert_close(tree.proposal.q, logits.softmax(-1), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    "shape", [lambda: Chain(LevelAcceptance()), lambda: Guesses(LevelAcceptance(), top_k=3, depth=3)]
)
def test_proposals_are_drawn_again_and_leave_no_rows(shape: Any) -> None:
    """Guards the contract of `propose`, and the target's pass, which takes no rows of a draft."""
    session, cache = opened(deep_model("llama"), (0, 2), shape(), Sampling(temperature=1.0))
    budget = Budget(nodes=6, depth=4, trees=True)
    first, second = session.propose(budget), session.propose(budget)
    assert np.array_equal(first.tokens, second.tokens)
    assert np.array_equal(first.parents, second.parents)
    assert (cache.uncommitted, cache.length) == (0, len(TEXT) - 1)
    assert len(session.propose(Budget(nodes=0, depth=4))) == len(session.propose(Budget(nodes=4, depth=0))) == 0


def test_a_draft_that_fails_leaves_no_rows() -> None:
    """Guards plain rounds after an error in the middle of a draft."""

    class Failing(Chain):
        def expand(self, level: Any) -> Any:
            if level.depth == 3:
                raise ArithmeticError
            return super().expand(level)

    session, cache = opened(deep_model("llama"), (0, 2), Failing(LevelAcceptance()), Sampling())
    with pytest.raises(ArithmeticError):
        session.propose(CHAIN)
    assert (cache.uncommitted, cache.cache.get_seq_length()) == (0, len(TEXT) - 1)
