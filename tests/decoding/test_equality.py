"""The promise itself: in fp32 the tokens are those of `model.generate`, whatever is drafted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from heads import HEADED, head_for
from models import PHI3, VOCABULARY, deep_model, tiny_model
from pairwise import in_turn
from speculant import Speculator
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.tree import DraftTree
from speculant.engines.hf.engine import HFEngine
from speculant.registry import METHODS

ARCHITECTURES = ["llama", "qwen3", "gemma3", "mistral", "mixtral", "phi3", "gpt2", "gpt_neox", "bloom"]
# Windows, learned positions and experts meet both kinds of attention in turn.
GREEDY = [
    pytest.param(*each.values, marks=[*each.marks, PHI3]) if "phi3" in each.values else each
    for each in in_turn(ARCHITECTURES, ["sdpa", "eager"])
]
SAMPLED = {"do_sample": True, "temperature": 0.7}
# Methods that draft through text need tokenizers, which these models have not.
LOSSLESS = [
    name
    for name, each in METHODS.items()
    if each.exactness == "lossless" and not each.drafts_text and (not each.heads or name in HEADED)
]
# The same of every head is among the fast tests of heads, and batches of draft models among those of draft models.
EVERY = [pytest.param(name, marks=pytest.mark.slow if METHODS[name].heads else ()) for name in LOSSLESS]
TOGETHER = [
    pytest.param(name, marks=pytest.mark.slow if each.heads or each.requires == "a draft model" else ())
    for name in LOSSLESS
    for each in [METHODS[name]]
]


class GuessingDrafter(Drafter):
    """Drafts random trees around the right continuation, so that rounds accept, reject and branch."""

    def __init__(self, text: Sequence[int]) -> None:
        self.text = list(text)

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> GuessingSession:
        return GuessingSession(self.text)


class GuessingSession(Session):
    """Where a text stands."""

    def __init__(self, text: list[int]) -> None:
        self.text, self.at = text, 0

    def propose(self, budget: Budget) -> DraftTree:
        paths, source = [], random.Random(self.at)
        for _ in range(source.randint(1, 4)):
            length = source.randint(1, 5)
            path = self.text[self.at : self.at + length]
            if path and source.random() < 0.7:
                path[source.randrange(len(path))] = source.randrange(VOCABULARY)
            paths.append([*path, source.randrange(VOCABULARY)])
        source.shuffle(paths)
        return DraftTree.from_paths(paths).head(budget.nodes).within(depth=budget.depth, trees=budget.trees)

    def observe(self, verified: Verified) -> None:
        self.at += len(verified.tokens)

    def close(self) -> None:
        pass


class CountingProcessor(LogitsProcessor):
    """Has state: pushes down a token that depends on how often it was called, and records the prefixes."""

    def __init__(self) -> None:
        self.prefixes: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.prefixes.append(input_ids[0].tolist())
        scores = scores.clone()
        scores[:, (len(self.prefixes) * 7) % VOCABULARY] -= 3.0
        return scores


class MultipleStops(StoppingCriteria):
    """Ends the text where it has 20 tokens or more and the last one is even."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return (input_ids[:, -1] % 2 == 0) & (input_ids.shape[1] >= 20)


def prompt_ids(length: int = 9) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).integers(3, VOCABULARY, (1, length)))


def both_ways(
    model: Any, ids: torch.Tensor, make: Any = dict, **options: Any
) -> tuple[list[int], list[int], Speculator]:
    """Generate plainly and with guessed trees from the same seed; `make` builds stateful options for each."""
    torch.manual_seed(11)
    plain = model.generate(ids, **options, **make())[0].tolist()
    speculator = Speculator.from_transformers(model, method="none", nodes=64)
    speculator.drafter = GuessingDrafter(plain[ids.shape[1] :])
    torch.manual_seed(11)
    ours = model.generate(ids, custom_generate=speculator, **options, **make())[0].tolist()
    return plain, ours, speculator


@pytest.mark.parametrize(("name", "attention"), GREEDY)
def test_greedy_tokens_are_those_of_generate(name: str, attention: str) -> None:
    """Guards positions, masks and cache rollback of every architecture, past sliding windows too."""
    plain, ours, speculator = both_ways(tiny_model(name, attention), prompt_ids(), max_new_tokens=24, do_sample=False)
    assert ours == plain
    stats = speculator.last_stats
    assert stats is not None
    assert stats.accepted > 5
    assert stats.rounds < len(plain) - 9


CHOICES: dict[str, dict[str, Any]] = {
    "temperature": SAMPLED,
    "top-p": SAMPLED | {"top_p": 0.9, "top_k": 20},
    "repetition": SAMPLED | {"repetition_penalty": 1.3},
    "no-repeat": SAMPLED | {"no_repeat_ngram_size": 2},
    "min-p": SAMPLED | {"min_p": 0.02, "min_new_tokens": 20},
    "greedy-processors": {"do_sample": False, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
}
# Processors see logits alone, so each meets one model; every model meets both kinds of attention.
SEEDED = in_turn(CHOICES, [*product(("llama", "qwen3", "gemma3"), ("sdpa", "eager"))])


@pytest.mark.parametrize(("choice", "name", "attention"), SEEDED)
def test_the_same_seed_gives_the_same_text(choice: str, name: str, attention: str) -> None:
    """Guards the random stream and processors that read the prefix."""
    plain, ours, _ = both_ways(tiny_model(name, attention), prompt_ids(), max_new_tokens=24, **CHOICES[choice])
    assert ours == plain


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_stateful_processor_sees_every_token_once(name: str) -> None:
    """Guards grammars and counters: one call per emitted token, with the true prefix, in order."""
    made: list[CountingProcessor] = []

    def make() -> dict[str, Any]:
        made.append(CountingProcessor())
        return {"logits_processor": LogitsProcessorList([made[-1]])}

    plain, ours, _ = both_ways(tiny_model(name), prompt_ids(), make, max_new_tokens=40, **SAMPLED)
    assert ours == plain
    assert made[0].prefixes == made[1].prefixes


@pytest.mark.parametrize("sample", [True, False])
def test_a_custom_stop_ends_inside_a_draft(sample: bool) -> None:
    """Guards stopping criteria that look at the last tokens: they are asked after each one."""
    options = SAMPLED if sample else {"do_sample": False}

    def make() -> dict[str, Any]:
        return {"stopping_criteria": StoppingCriteriaList([MultipleStops()])}

    plain, ours, _ = both_ways(tiny_model("llama"), prompt_ids(), make, max_new_tokens=60, **options)
    assert ours == plain
    assert len(plain) < 69


def test_end_of_text_inside_a_draft() -> None:
    """Guards EOS: nothing is emitted behind it, and it is emitted itself."""
    model = tiny_model("llama")
    ids = prompt_ids()
    text = model.generate(ids, max_new_tokens=40, do_sample=False)[0].tolist()
    ending = text[9 + 17]
    plain, ours, _ = both_ways(model, ids, max_new_tokens=40, do_sample=False, eos_token_id=ending)
    assert ours == plain
    assert ours[-1] == ending


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_the_length_limit_is_kept(length: int) -> None:
    """Guards drafts deeper than what is left to say."""
    plain, ours, _ = both_ways(tiny_model("llama"), prompt_ids(), max_new_tokens=length, do_sample=False)
    assert ours == plain


@pytest.mark.parametrize(("name", "attention"), in_turn(["llama", "gemma3", "gpt2"], ["eager", "sdpa"]))
def test_left_padding_is_honoured(name: str, attention: str) -> None:
    """Guards the mask and positions of padded prompts, given or inferred by `generate` from pad ids."""
    ids = torch.cat([torch.zeros(1, 4, dtype=torch.long), prompt_ids()], dim=1)
    model = tiny_model(name, attention)
    for mask in ({}, {"attention_mask": (ids != 0).long()}):
        plain, ours, _ = both_ways(model, ids, max_new_tokens=20, do_sample=False, **mask)
        assert ours == plain


def test_scores_and_logits_are_those_of_generate() -> None:
    """Guards `output_scores`, `output_logits` and the returned cache."""
    model, ids = tiny_model("llama"), prompt_ids()
    options: dict[str, Any] = {
        "max_new_tokens": 20,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "top_k": 10,
    } | SAMPLED
    torch.manual_seed(1)
    plain = model.generate(ids, **options)
    speculator = Speculator.from_transformers(model, method="aded")
    torch.manual_seed(1)
    ours = model.generate(ids, custom_generate=speculator, **options)
    assert torch.equal(plain.sequences, ours.sequences)
    assert len(ours.scores) == len(ours.logits) == len(plain.scores)
    torch.testing.assert_close(torch.stack(ours.scores), torch.stack(plain.scores))
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(plain.logits))
    assert ours.past_key_values.get_seq_length() == ours.sequences.shape[1] - 1


PROMPTS = [prompt_ids(length)[0].tolist() for length in (9, 4, 13)]
TOKENS, BATCH_TOKENS = 16, 9


def speculator_of(method: str, model: Any) -> Speculator:
    """Return a speculator of a method, with a draft model where it takes one: the target itself."""
    return Speculator.from_transformers(
        model,
        method=method,
        nodes=8,
        draft_model=model if METHODS[method].takes_draft_model else None,
        head=head_for(method, model) if METHODS[method].heads else None,
    )


@cache
def plain_generate(sample: bool) -> torch.Tensor:
    """Return the tiny model's own text, the same for every method."""
    model, options = deep_model("llama"), SAMPLED if sample else {"do_sample": False}
    torch.manual_seed(2)
    text: torch.Tensor = model.generate(prompt_ids(), max_new_tokens=TOKENS, **options)
    return text


@cache
def plain_batch(temperature: float) -> list[list[int]]:
    """Return the texts of requests alone, decoded plainly."""
    plain = Speculator.from_transformers(tiny_model("llama"), method="none")
    options: dict[str, Any] = {"max_new_tokens": BATCH_TOKENS, "temperature": temperature}
    return [plain.generate(prompt, seed=5 + i, **options).ids for i, prompt in enumerate(PROMPTS)]


# Alone by a seed and in batches greedily are the fast ones: every method meets both samplers and both ways of decoding.
@pytest.mark.parametrize("method", EVERY)
@pytest.mark.parametrize("sample", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_method_gives_the_text_of_generate(method: str, sample: bool) -> None:
    """Guards the real drafters, whose drafts depend on what they learned; all but sampled drafts keep the tokens."""
    model, ids = deep_model("llama"), prompt_ids()
    options = SAMPLED if sample else {"do_sample": False}
    speculator = speculator_of(method, model)
    if sample and speculator.verifier.exactness != "tokens":
        pytest.skip("the same distribution, not the same tokens: see test_speculative_sampling")
    for _ in range(2):
        torch.manual_seed(2)
        ours = model.generate(ids, max_new_tokens=TOKENS, custom_generate=speculator, **options)
        assert torch.equal(ours, plain_generate(sample))
    stats = speculator.last_stats
    assert stats is not None
    if method in ("mix", "aded", "suffix", "sam", "recycling") or METHODS[method].takes_draft_model:
        assert stats.mat > 1.2  # the second time it knows the text


@pytest.mark.parametrize("method", TOGETHER)
@pytest.mark.parametrize("temperature", [0, pytest.param(0.7, marks=pytest.mark.slow)])
def test_every_method_gives_a_batch_the_texts_of_requests_alone(method: str, temperature: float) -> None:
    """Guards the same in batches, where drafts share a pass."""
    model = tiny_model("llama")
    speculator = speculator_of(method, model)
    if temperature and speculator.verifier.exactness != "tokens":
        pytest.skip("the same distribution, not the same tokens: see test_speculative_sampling")
    options: dict[str, Any] = {"max_new_tokens": BATCH_TOKENS, "temperature": temperature}
    for _ in range(2):
        found = speculator.generate_batch(PROMPTS, seed=5, **options)
        assert [each.ids for each in found] == plain_batch(temperature)


def test_float64_logits_of_a_tree_are_those_of_plain_passes() -> None:
    """Guards the target itself to rounding: each row of a tree pass against a pass over its own path."""
    for name in ("llama", "gemma3", "gpt2"):
        model, ids = tiny_model(name).double(), prompt_ids(20)
        tree = DraftTree.from_paths([[5, 6, 7, 8], [5, 9], [10, 11, 12], [10, 6]])
        engine = HFEngine(model)
        cache = engine.open(ids)
        with torch.no_grad():
            cache.prefill()
            logits = engine.forward([(cache, 4, tree)])[0].logits
            for node in range(-1, len(tree)):
                path = [4, *tree.tokens[tree.path(node)].tolist()]
                alone = model(torch.cat([ids, torch.tensor([path])], dim=1)).logits[0, -1]
                torch.testing.assert_close(logits[node + 1], alone, rtol=0, atol=1e-9)
