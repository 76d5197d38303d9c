"""GGUF files are decoded as models of transformers are: the same options, the same text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gguf_families import family_file
from ggufs import bundled_gguf, needs_llamacpp, open_engine, tiny_gguf
from models import deep_model
from speculant import Constraint, PrefixCache
from speculant.api.loading import load_model
from speculant.api.speculator import Speculator
from speculant.core.errors import MemoryFileError, UnsupportedError, UsageError
from speculant.registry import METHODS
from state_ggufs import state_gguf

pytestmark = pytest.mark.peers

PROMPTS = ["Once upon a time there was a little dog named", "Tom and Lily went to the park. Tom and Lily"]
TOKENS = 24
METHODS_HERE = [  # that draft from tokens or from the target's logits
    method.name
    for method in METHODS.values()
    if not (method.takes_draft_model or method.takes_layers or method.takes_rows or method.heads)
    and method.exactness == "lossless"
]


@pytest.fixture(scope="module")
def stories() -> dict[str, Speculator]:
    """Return the bundled model in transformers, and in llama.cpp without and with drafts."""
    needs_llamacpp()
    plain = Speculator.from_gguf(bundled_gguf(), method="none", threads=1, engine="llamacpp")
    return {
        "transformers": Speculator.from_pretrained(method="none", fast=False),
        "plain": plain,
        "mix": Speculator.from_transformers(plain.model, plain.tokenizer, nodes=8),
    }


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_text_is_that_of_transformers(prompt: str, stories: dict[str, Speculator]) -> None:
    """In float32, greedy and sampled with a seed, and with drafts that are accepted."""
    for options in ({"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 4}):
        results = [each.generate(prompt, max_new_tokens=TOKENS, **options) for each in stories.values()]
        assert results[0].ids == results[1].ids == results[2].ids
        assert results[0].text == results[2].text
        again = stories["mix"].generate(prompt, max_new_tokens=TOKENS, **options)
        assert again.ids == results[0].ids
        assert again.stats.accepted > TOKENS // 4


@pytest.mark.skipif("SPECULANT_DATA" not in os.environ, reason="SPECULANT_DATA names no folder with the model")
def test_a_model_that_is_not_ours(tmp_path: Path) -> None:
    """A real model of another author, with a tokenizer of its own: the text of transformers, plain and with drafts."""
    needs_llamacpp()
    from speculant.engines.llamacpp.gguf_file import write_gguf

    model, tokenizer = load_model(str(Path(os.environ["SPECULANT_DATA"]) / "models" / "stories260K"))
    write_gguf(model, tmp_path / "model.gguf", tokenizer=tokenizer)
    expected = Speculator.from_transformers(model, tokenizer, method="none", fast=False)
    mix = Speculator.from_gguf(tmp_path / "model.gguf", nodes=8, threads=1, engine="llamacpp")
    for prompt in PROMPTS * 2:
        options = {"max_new_tokens": TOKENS, "temperature": 0}
        assert mix.generate(prompt, **options).text == expected.generate(prompt, **options).text
    assert mix.last_stats is not None
    assert mix.last_stats.accepted > TOKENS // 4


@pytest.mark.parametrize("kind", ["bf16", "q8_0", "q4_k"])
def test_other_weights(kind: str) -> None:
    """Drafts leave the text of quantised weights as it is, but for near-ties, which are counted."""
    from speculant.bench.suite.margins import MarginSummary, margins

    plain = Speculator.from_gguf(bundled_gguf(kind), method="none", threads=1, engine="llamacpp")
    mix = Speculator.from_transformers(plain.model, plain.tokenizer, nodes=12)
    for _ in range(2):
        for prompt in PROMPTS:
            result = mix.generate(prompt, max_new_tokens=TOKENS, temperature=0)
            ids = plain.tokenizer.encode(prompt)
            found = MarginSummary(margins(plain, torch.tensor(ids, dtype=torch.int32).numpy(), result.ids))
            assert not found.wrong
            assert found.near_ties <= 1


@pytest.mark.parametrize("method", METHODS_HERE)
def test_methods(method: str) -> None:
    """Every method that needs no more than tokens and logits gives the text of plain decoding."""
    model = _tiny()
    prompt = [3, 4, 5, 6, 3, 4, 5]
    plain = Speculator.from_transformers(model, method="none").generate(prompt, max_new_tokens=24, temperature=0)
    assert (
        Speculator.from_transformers(model, method=method).generate(prompt, max_new_tokens=24, temperature=0).ids
        == plain.ids
    )


@pytest.mark.parametrize(("method", "sequences"), [("lookahead", 8), ("recycling", 3), ("mix", 3), ("specinfer", 3)])
def test_few_sequences(method: str, sequences: int) -> None:
    """Drafts are cut to the branches that are left beside the texts, alone and together; the text stays the same."""
    model = open_engine(tiny_gguf(), sequences=sequences).model
    draft_model = deep_model("llama") if method == "specinfer" else None
    options = {"max_new_tokens": 24, "temperature": 1.0 if method == "specinfer" else 0, "seed": 3}
    prompts = [[3, 4, 5, 6, 3, 4, 5], [3, 4, 5, 6, 3]]
    plain = Speculator.from_transformers(model, method="none")
    speculator = Speculator.from_transformers(model, method=method, draft_model=draft_model, nodes=16)
    found = speculator.generate_batch(prompts, size=2, **options)
    alone = speculator.generate(prompts[0], **options)
    if method != "specinfer":
        expected = [each.ids for each in plain.generate_batch(prompts, size=2, **options)]
        assert [each.ids for each in found] == expected
        assert alone.ids == expected[0]
    with pytest.raises(UsageError, match="raise `sequences`"):
        speculator.batch(sequences + 1)


def test_draft_models() -> None:
    """A draft model of transformers drafts for a GGUF target."""
    speculator = Speculator.from_transformers(_tiny(), method="draft-model", draft_model=deep_model("llama"), nodes=4)
    result = speculator.generate([3, 4, 5], max_new_tokens=20, temperature=0)
    assert (
        result.ids
        == Speculator.from_transformers(_tiny(), method="none")
        .generate([3, 4, 5], max_new_tokens=20, temperature=0)
        .ids
    )
    assert result.stats.rounds < 8


def test_batches(stories: dict[str, Speculator]) -> None:
    """Several texts in a pass are what they are alone."""
    prompts = [*PROMPTS, "The cat", "One day"]
    alone = [stories["plain"].generate(prompt, max_new_tokens=24, temperature=0).ids for prompt in prompts]
    for size in (2, 4):
        results = stories["mix"].generate_batch(prompts, size=size, max_new_tokens=24, temperature=0)
        assert [result.ids for result in results] == alone


def test_turns(stories: dict[str, Speculator]) -> None:
    """A next turn reads only what is new, and gives the text of the whole conversation."""
    mix, tokenizer = stories["mix"], stories["plain"].tokenizer
    first = mix.generate(PROMPTS[0], max_new_tokens=10, temperature=0)
    ids = [*tokenizer.encode(PROMPTS[0]), *first.ids, *tokenizer.encode(" The end.", add_special_tokens=False)]
    second = mix.generate(ids, max_new_tokens=20, temperature=0, cache=first.cache)
    assert second.stats.prompt_tokens < 8
    assert second.ids == stories["plain"].generate(ids, max_new_tokens=20, temperature=0).ids


def test_stop_strings_and_options(stories: dict[str, Speculator]) -> None:
    """Stop strings, penalties and the end of the context are those of transformers."""
    for options in ({"stop": [" big"]}, {"repetition_penalty": 1.3}, {"stop": "ump an"}):  # within tokens
        found = [each.generate(PROMPTS[1], max_new_tokens=36, temperature=0, **options) for each in stories.values()]
        assert found[0].ids == found[1].ids == found[2].ids
        assert {each.finish_reason for each in found} == {"stop" if "stop" in options else "length"}
    short = Speculator.from_gguf(bundled_gguf(), threads=1, context=24)
    result = short.generate(PROMPTS[0], temperature=0)
    assert len(result.ids) + result.stats.prompt_tokens == 24
    assert "the model has 24 positions" in " ".join(result.stats.notes)


def test_custom_generate(stories: dict[str, Speculator]) -> None:
    """Transformers' own `generate` hands over to the speculator; without one it is refused."""
    mix = stories["mix"]
    ids = torch.tensor([stories["plain"].tokenizer.encode(PROMPTS[0])])
    found = mix.model.generate(ids, custom_generate=mix, max_new_tokens=12, do_sample=False)
    expected = stories["plain"].generate(PROMPTS[0], max_new_tokens=12, temperature=0).ids
    assert found[0, ids.shape[1] :].tolist() == expected
    with pytest.raises(UnsupportedError, match="decoded by a speculator"):
        mix.model.generate(ids, max_new_tokens=2)


def test_memories_fit_both(stories: dict[str, Speculator], tmp_path: Path) -> None:
    """What a GGUF model's drafter learned serves transformers' model, whose vocabulary is the same, and no other."""
    stories["mix"].save(tmp_path / "m")
    Speculator.from_pretrained(memory=tmp_path / "m", fast=False)
    Speculator.from_gguf(bundled_gguf("q8_0"), memory=tmp_path / "m", threads=1, engine="llamacpp")
    with pytest.raises(MemoryFileError):
        Speculator.from_transformers(_tiny(), memory=tmp_path / "m")


def test_what_llama_cpp_does_not_do_is_refused() -> None:
    """Heads, layers and fast passes are refused by name, and a path where a model is expected."""
    model = _tiny()
    for options, said in (
        ({"method": "eagle"}, "hidden states"),
        ({"head": "some/head"}, "hidden states"),
        ({"method": "swift"}, "a part of the target's layers"),
        ({"fast": True}, "its own kernels"),
    ):
        with pytest.raises(UnsupportedError, match=said):
            Speculator.from_transformers(model, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"Use Speculator\.from_gguf"):
        Speculator.from_transformers("model.gguf")


def _tiny() -> Any:
    return open_engine(tiny_gguf()).model


def test_constraints_and_logprobs_are_those_of_transformers(stories: dict[str, Speculator]) -> None:
    """The same vocabulary in llguidance's form, and the same log-probabilities, with drafts and without."""
    schema = Constraint.json_schema({"enum": [{"dog": "small"}, {"dog": "big"}]}, compact=True)
    for options in (
        {"constraint": schema},
        {"constraint": Constraint.regex("[a-z ]{20}[.]")},
        {"logit_bias": {300: 5}},
    ):
        results = [
            each.generate(PROMPTS[0], max_new_tokens=TOKENS, temperature=0, logprobs=2, **options)
            for each in stories.values()
        ]
        assert results[0].ids == results[1].ids == results[2].ids
        expected, *others = ([each.logprob for each in result.logprobs or []] for result in results)
        assert all(found == pytest.approx(expected, abs=1e-3) for found in others)


def test_a_prefix_cache_shares_rows_of_llama_cpps_cache(stories: dict[str, Speculator]) -> None:
    """Prompts that begin like earlier or present texts read only what is new, and their texts stay the same."""
    prompts, given = [f"{PROMPTS[1]} {PROMPTS[1]} {end}" for end in ("ran", "sat", "ran home")], {"max_new_tokens": 12}
    plain = stories["plain"]
    expected = [plain.generate(prompt, temperature=0, **given).ids for prompt in prompts]
    prefixes = PrefixCache("1GB")
    for _ in range(2):
        with stories["mix"].batch(2, prefix_cache=prefixes) as batch:
            results = batch.run([batch.add(prompt, temperature=0, **given) for prompt in prompts])
        assert [result.ids for result in results] == expected
    assert prefixes.stats.hits == 5
    assert 0 < prefixes.stats.bytes <= prefixes.limit


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "llama"])
def test_what_follows_the_beginning_of_a_text_reads_all_of_it(name: str) -> None:
    """Guards windows: llama.cpp stores others in the cells of rows that no window reaches, and turns may go back."""
    needs_llamacpp()
    random = np.random.default_rng(3)
    file = family_file(name)
    plain, drafting = (
        Speculator.from_gguf(file, threads=1, engine="llamacpp", method=method) for method in ("none", "aded")
    )
    for _ in range(6):
        prompt, cache = random.integers(3, 61, 5).tolist(), None
        for _ in range(4):
            options: dict[str, Any] = {"max_new_tokens": int(random.choice([3, 10, 40])), "no_repeat_ngram_size": 3}
            result = drafting.generate(prompt, cache=cache, **options)
            assert result.ids == plain.generate(prompt, **options).ids
            whole, cache = prompt + result.ids, result.cache
            length = int(random.integers(1, len(whole)))
            cache.crop(length)
            prompt = whole[:length] + random.integers(3, 61, 3).tolist()


def test_what_chains_have_no_rows_for_is_refused_by_name() -> None:
    """Guards `lookahead` on models with states: the message says what to do, not which field of a budget to set."""
    needs_llamacpp()
    speculator = Speculator.from_gguf(state_gguf("mamba")[0], threads=1, engine="llamacpp", method="lookahead")
    with pytest.raises(UnsupportedError, match="Use another method"):
        speculator.generate([5, 9, 14], max_new_tokens=4)
