"""Heads draft for targets of several architectures, and never change their text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from guesses import prompts
from heads import HEADED, head_for, oracle, random_head
from interrupts import interrupted
from models import PHI3, tiny_model
from passes import plain_text
from speculant import Speculator
from speculant.core.errors import UsageError
from speculant.drafters.heads.drafter import HeadDrafter
from speculant.registry import METHODS

PROMPT = [5, 9, 14, 3, 8]
MODELS = [
    "llama",
    "qwen2",
    "qwen3",
    "gemma3",
    "mistral",
    "mixtral",
    pytest.param("phi3", marks=PHI3),
    "gpt2",
    "gpt_neox",
    "bloom",
]
GREEDY: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0, "eos_token_id": None}


def speculator_of(model: Any, head: Any = None, method: str = "eagle2", **options: Any) -> Speculator:
    """Return a speculator with a head, by default a random one."""
    options = {"nodes": 8} | options
    return Speculator.from_transformers(model, method=method, head=head or head_for(method, model), **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["eagle", "eagle2"])
def test_greedy_text_is_the_targets(name: str, method: str) -> None:
    """Guards every architecture, sliding windows included: alone, in chunks, in batches, with CPU code, in turns."""
    model, speculators = tiny_model(name), list[Speculator]()
    for fast in (False, None):
        speculators.append(speculator_of(model, oracle(model, begin=5, noise=3.0), method, fast=fast))
    plain = plain_text(model, torch.tensor([PROMPT]), 24)
    for speculator in speculators:
        first = speculator.generate(PROMPT, **GREEDY)
        assert first.ids == plain
        assert 0 < first.stats.accepted < first.stats.drafted
        config = type(model.generation_config)(prefill_chunk_size=2)
        assert speculator.generate(PROMPT, generation_config=config, **GREEDY).ids == plain
        asked = [*PROMPT, *plain, 17, 4]
        again = plain_text(model, torch.tensor([asked]), 24)
        assert speculator.generate(asked, cache=first.cache, **GREEDY).ids == again
    together = speculator_of(model, random_head(model), method).generate_batch(prompts(), **GREEDY)
    assert [each.ids for each in together] == [plain_text(model, torch.tensor([each]), 24) for each in prompts()]


@pytest.mark.parametrize("method", HEADED)
def test_every_method_keeps_the_text_with_a_random_head(method: str) -> None:
    """Guards each row of the table: alone, in a batch, and through `generate` of transformers."""
    model = tiny_model("llama")
    speculator = speculator_of(model, method=method)
    texts = [plain_text(model, torch.tensor([prompt]), 24) for prompt in prompts()]
    assert [speculator.generate(prompt, **GREEDY).ids for prompt in prompts()] == texts
    assert [each.ids for each in speculator.generate_batch(prompts(), size=3, **GREEDY)] == texts
    ids = torch.tensor([prompts()[0]])
    found = model.generate(
        ids, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0, custom_generate=speculator
    )
    assert found[0, ids.shape[1] :].tolist() == texts[0]
    stats = speculator.last_stats
    assert stats is not None
    assert stats.drafted


@pytest.mark.parametrize("method", HEADED)
def test_sample_then_follow_keeps_sampled_text(method: str) -> None:
    """Guards seeds: with chosen drafts the text is plain decoding's, token by token."""
    model = tiny_model("gemma3")
    options: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0.8, "top_p": 0.9, "seed": 3}
    plain = Speculator.from_transformers(model, method="none").generate(PROMPT, **options).ids
    speculator = speculator_of(model, method=method, verifier="sample-then-follow")
    assert speculator.generate(PROMPT, **options).ids == plain
    batch = speculator.generate_batch([PROMPT, PROMPT[:2]], **options)
    assert batch[0].ids == plain


def test_an_oracle_is_always_accepted() -> None:
    """Guards pairing and positions: where the head is right, every draft is accepted whole, greedy and sampled."""
    model = tiny_model("llama")
    greedy = speculator_of(model, oracle(model, begin=5), "eagle", nodes=4).generate(PROMPT, **GREEDY)
    assert greedy.stats.accepted == greedy.stats.drafted > 0
    sampled = speculator_of(model, oracle(model, begin=5), "eagle", nodes=4, verifier="speculative-sampling")
    result = sampled.generate(PROMPT, **GREEDY | {"temperature": 0.9, "seed": 2})
    assert result.stats.accepted == result.stats.drafted > 0
    tree = speculator_of(model, oracle(model, begin=5), "eagle2", nodes=12, settings={"depth": 3})
    assert tree.generate(PROMPT, **GREEDY).stats.mat > 3.4


def test_a_head_of_some_depth_drafts_no_deeper() -> None:
    """Guards heads that predict a fixed number of tokens."""
    model = tiny_model("llama")
    for method, nodes in (("eagle", 8), ("eagle2", 20)):
        stats = (
            speculator_of(model, oracle(model, begin=5, depth=2), method, nodes=nodes).generate(PROMPT, **GREEDY).stats
        )
        assert len(stats.offered_by_depth) == 2
        assert 2.5 < stats.mat <= 3


def test_drafts_end_at_the_targets_last_position() -> None:
    """Guards the end of the context: no draft goes beyond it, and the text is the target's up to there."""
    model = tiny_model("llama", max_position_embeddings=24)
    speculator = speculator_of(model, oracle(model, begin=5), "eagle2", nodes=16)
    result = speculator.generate(PROMPT, **GREEDY | {"max_new_tokens": 19})
    assert result.ids == plain_text(model, torch.tensor([PROMPT]), 19)


def test_kept_rows_equal_those_computed_anew() -> None:
    """Guards a second turn on the kept cache: drafts, not only texts, are those of a head that read everything."""
    model, head = tiny_model("llama"), random_head(tiny_model("llama"))
    head = random_head(model)
    options = {"settings": {"depth": 3}, "nodes": 6}
    kept, anew = speculator_of(model, head, **options), speculator_of(model, head, **options)
    first = kept.generate(PROMPT, **GREEDY)
    asked = [*PROMPT, *first.ids, 17, 4, 33]
    drafts: list[list[Any]] = [[], []]
    for place, (speculator, cache) in enumerate([(kept, first.cache), (anew, None)]):
        drafter = speculator.drafter
        assert isinstance(drafter, HeadDrafter)
        assert len(drafter.states) == (place == 0)
        propose = drafter.propose

        def recorded(*given: Any, place: int = place, propose: Any = propose) -> Any:
            found = propose(*given)
            drafts[place] += [(tree.tokens.tolist(), tree.parents.tolist()) for tree in found]
            return found

        drafter.propose = recorded  # type: ignore[method-assign]
        speculator.generate(asked, cache=cache, **GREEDY)
    assert drafts[0] == drafts[1]
    assert any(tokens for tokens, _ in drafts[0])


@pytest.mark.parametrize("method", ["eagle", "eagle2", "mix-head"])
def test_bfloat16(method: str) -> None:
    """Guards dtypes: the head runs in the target's, and the text is the target's but for near-ties."""
    model = tiny_model("llama").to(torch.bfloat16)
    head = random_head(model)
    assert next(head.head.parameters()).dtype == torch.bfloat16  # type: ignore[attr-defined]
    result = speculator_of(model, head, method).generate(PROMPT, **GREEDY)
    assert len(result.ids) == 24
    assert result.stats.drafted > 0
    options = GREEDY | {"temperature": 1.0, "seed": 1}
    assert (
        len(speculator_of(model, head, "eagle", verifier="speculative-sampling").generate(PROMPT, **options).ids) == 24
    )


def test_an_interrupted_request_leaves_nothing_behind() -> None:
    """Guards Ctrl-C at any line: text so far is right, the next turn goes on, and kept rows are whole."""
    model, line, reached = tiny_model("llama", num_hidden_layers=2), 3, True
    speculator = speculator_of(model)
    plain = plain_text(model, torch.tensor([PROMPT]), 12)
    options = GREEDY | {"max_new_tokens": 12}
    while reached:
        stream = speculator.stream(PROMPT, **options)
        pieces = iter(stream)
        next(pieces)
        reached = interrupted(lambda: next(pieces, None), line)  # noqa: B023
        pieces.close()
        ids, cache = stream.result.ids, stream.result.cache
        assert ids == plain[: len(ids)]
        if reached and len(ids) < 12:
            rest = speculator.generate([*PROMPT, *ids], cache=cache, **options | {"max_new_tokens": 12 - len(ids)})
            assert ids + rest.ids == plain
        drafter = speculator.drafter
        assert isinstance(drafter, HeadDrafter)
        for tokens, state in drafter.states._kept:
            assert state.length == len(tokens) - 1
        line += 61
    assert line > 300
    assert speculator.generate(PROMPT, **options).ids == plain


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("eagle", {"depth": 0}),
        ("eagle2", {"tree": "bush"}),
        ("eagle2", {"top_k": 0}),
        ("eagle2", {"least": 1.0}),
        ("mix-head", {"proposed": 0}),
        ("mix-head", {"depth": -1}),
    ],
)
def test_bad_settings_are_refused(method: str, settings: dict[str, Any]) -> None:
    """Guards the limits, before the first request."""
    model = tiny_model("llama")
    with pytest.raises(UsageError):
        speculator_of(model, random_head(model), method, settings=settings)


def test_headed_methods_are_all_in_the_table() -> None:
    """Guards this file: every method that takes any head is tested here."""
    assert {"eagle", "eagle2", "mix-head", "suffix-head"} <= set(HEADED)
    assert all(METHODS[name].exactness == "lossless" for name in HEADED)
