"""Speculative sampling end to end: a draft model and its target through streams and batches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from models import endless, perturbed, tiny_model
from speculant import Speculator
from speculant.core.errors import TokenizerError, UnsupportedError, UsageError

PROMPT = [5, 9, 14, 3, 8]


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """A target and a draft model, whose distributions differ."""
    return endless("llama", num_hidden_layers=1), perturbed(endless("llama", num_hidden_layers=1), 0.3)


def test_greedy_tokens_are_the_targets(pair: tuple[Any, Any]) -> None:
    """Guards temperature 0, where a rule of probabilities must be the argmax of the target, draft or not."""
    target, draft = pair
    plain = target.generate(torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False)[0, 5:].tolist()
    for nodes in (1, 3, 8, "auto"):
        speculator = Speculator.from_transformers(target, method="draft-model", draft_model=draft, nodes=nodes)
        result = speculator.generate(PROMPT, max_new_tokens=20, temperature=0)
        assert result.ids == plain
        assert nodes == "auto" or 0 < result.stats.accepted < result.stats.drafted


@pytest.mark.parametrize("verifier", ["greedy", "k-seq", "block", "traversal"])
def test_greedy_tokens_are_the_targets_under_every_rule(pair: tuple[Any, Any], verifier: str) -> None:
    """Guards rules of probabilities where decoding is greedy, alone and in a batch."""
    target, draft = pair
    prompts = [PROMPT, [7], [11] * 9]
    plain = [
        target.generate(torch.tensor([each]), max_new_tokens=12, do_sample=False)[0, len(each) :].tolist()
        for each in prompts
    ]
    speculator = Speculator.from_transformers(
        target, method="draft-model", draft_model=draft, verifier=verifier, nodes=6
    )
    results = speculator.generate_batch(prompts, size=3, max_new_tokens=12, temperature=0)
    assert [each.ids for each in results] == plain
    assert speculator.generate(PROMPT, max_new_tokens=12, temperature=0).ids == plain[0]
    if verifier == "greedy":
        with pytest.raises(UnsupportedError, match="temperature 0"):
            speculator.generate(PROMPT, max_new_tokens=4, temperature=1.0)


@pytest.mark.parametrize(
    ("verifier", "options"),
    [
        ("speculative-sampling", {"temperature": 1.0, "top_k": 3}),
        pytest.param("speculative-sampling", {"temperature": 0.7, "top_p": 0.3, "top_k": 0}, marks=pytest.mark.slow),
        pytest.param("block", {"temperature": 1.0, "top_k": 3}, marks=pytest.mark.slow),
        ("traversal", {"temperature": 1.0, "top_k": 3}),
    ],
)
def test_the_distribution_is_the_targets(pair: tuple[Any, Any], verifier: str, options: dict[str, Any]) -> None:
    """Guards the text of sampled drafts: two tokens after the prompt, chi-square against the target's own."""
    target, draft = pair
    speculator = Speculator.from_transformers(
        target, method="draft-model", draft_model=draft, verifier=verifier, nodes=3
    )
    draws = 200  # of four tokens, since the last one of a text is never drafted
    results = speculator.generate_batch([PROMPT] * draws, size=50, max_new_tokens=4, seed=0, **options)
    counts = Counter(tuple(result.ids[:2]) for result in results)
    accepted = sum(result.stats.accepted for result in results)
    assert accepted > draws / 4
    expected = pairs_of_tokens(target, options)
    assert set(counts) <= set(expected)
    likely = {text: p for text, p in expected.items() if draws * p >= 5}
    rest = 1 - sum(likely.values())
    chi = sum((counts[text] - draws * p) ** 2 / (draws * p) for text, p in likely.items())
    if draws * rest >= 5:
        other = draws - sum(counts[text] for text in likely)
        chi += (other - draws * rest) ** 2 / (draws * rest)
    degrees = len(likely)
    assert chi < degrees + 4 * np.sqrt(2 * degrees)  # four standard deviations


def pairs_of_tokens(target: Any, options: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """Return the probability of every two tokens after the prompt, by the warpers that `generate` uses."""

    def after(ids: list[int]) -> dict[int, float]:
        output = target.generate(
            torch.tensor([ids]),
            max_new_tokens=1,
            do_sample=True,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        )
        p = output.scores[0][0].double().softmax(-1)
        return {token: float(p[token]) for token in torch.nonzero(p).flatten().tolist()}

    return {(a, b): p * q for a, p in after(PROMPT).items() for b, q in after([*PROMPT, a]).items()}


def test_a_batch_of_four(pair: tuple[Any, Any]) -> None:
    """Guards draft models whose caches are as many as the sequences, each in step with its own text."""
    target, draft = pair
    prompts = [PROMPT, [7], [3, 4, 5], [11] * 9]
    speculator = Speculator.from_transformers(target, method="draft-model", draft_model=draft, nodes=12)
    plain = Speculator.from_transformers(target, method="none")
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0}
    results = speculator.generate_batch(prompts, size=4, **options)
    assert [each.ids for each in results] == [plain.generate(prompt, **options).ids for prompt in prompts]
    assert sum(each.stats.accepted for each in results) > 0
    sampled = [speculator.generate_batch(prompts, size=4, max_new_tokens=10, temperature=1.0, seed=3) for _ in range(2)]
    assert [each.ids for each in sampled[0]] == [each.ids for each in sampled[1]]


def test_several_turns_on_one_cache(pair: tuple[Any, Any]) -> None:
    """Guards the draft model's own cache in a conversation, where the target's is kept and its is made anew."""
    target, draft = pair
    speculator = Speculator.from_transformers(target, draft_model=draft, nodes=4)  # the default method
    first = speculator.generate(PROMPT, max_new_tokens=12, temperature=0)
    asked = [*PROMPT, *first.ids, 9, 8]
    plain = target.generate(torch.tensor([asked]), max_new_tokens=12, do_sample=False)[0, len(asked) :].tolist()
    assert speculator.generate(asked, max_new_tokens=12, temperature=0, cache=first.cache).ids == plain


def test_wrong_pairs_are_refused(pair: tuple[Any, Any]) -> None:
    """Guards what cannot work: no draft model, a method without one, another vocabulary, a rule for chosen tokens."""
    target, draft = pair
    with pytest.raises(UsageError, match="needs a draft model"):
        Speculator.from_transformers(target, method="draft-model")
    with pytest.raises(UsageError, match="takes no draft model"):
        Speculator.from_transformers(target, method="lookup", draft_model=draft)
    with pytest.raises(UnsupportedError, match="drawn with replacement"):
        Speculator.from_transformers(target, method="specinfer", draft_model=draft, verifier="sample-then-follow")
    other = tiny_model("llama")
    other.config.vocab_size = 5000
    with pytest.raises(TokenizerError, match="tokens differ"):
        Speculator.from_transformers(target, method="draft-model", draft_model=other)


@pytest.mark.parametrize("sample", [False, True])
def test_chosen_drafts_under_speculative_sampling(pair: tuple[Any, Any], sample: bool) -> None:
    """Guards a memory drafter under the rule of sampled drafts: one-hot q, chains, greedy the target's tokens."""
    target, _ = pair
    speculator = Speculator.from_transformers(target, method="lookup", verifier="speculative-sampling", nodes=8)
    options: dict[str, Any] = {"temperature": 1.0, "seed": 4} if sample else {"temperature": 0}
    prompt = [3, 4, 5, 6] * 4
    result = speculator.generate(prompt, max_new_tokens=40, **options)
    assert len(result.ids) == 40 or result.ids[-1] == target.config.eos_token_id
    if not sample:
        plain = target.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)[0, 16:].tolist()
        assert result.ids == plain
