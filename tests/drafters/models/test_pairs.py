"""Pairs of a target and a draft model: what is compared, refused and noted, and that texts stay the target's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from models import deep_model
from pairwise import every_other
from speculant import Speculator
from speculant.api.loading import load_model
from speculant.core.errors import TokenizerError, UnsupportedError, UsageError
from speculant.drafters.models.pairs import compare_pair
from speculant.registry import METHODS
from vocabularies import byte_level, sentencepiece, translated_model, wordpiece

OURS, THEIRS, FEWER = 320, 340, 300
PROMPTS = ["zq xw", "A café and 犬"]  # the first has the same tokens in all
FOREIGN = Path(os.environ.get("SPECULANT_DATA", "")) / "models" / "stories260K"
SHORT: dict[str, Any] = {"max_new_tokens": 16, "temperature": 0}
METHODS_OF_PAIRS = [
    name for name, method in METHODS.items() if method.takes_draft_model and method.exactness == "lossless"
]
data = pytest.mark.skipif(
    not os.environ.get("SPECULANT_DATA") or not FOREIGN.exists(), reason="SPECULANT_DATA names no folder with the model"
)


@pytest.fixture(scope="module")
def target() -> Any:
    """A random target with a byte-level vocabulary."""
    return deep_model("llama", vocab_size=OURS)


@pytest.fixture(scope="module")
def draft(target: Any) -> Any:
    """A draft model with fewer tokens, which agrees with the target on those."""
    pair = compare_pair(byte_level(), byte_level(FEWER), vocabulary=OURS, draft_vocabulary=FEWER)
    assert pair.translation is not None
    return translated_model(target, pair.translation.shared.to_draft(), FEWER)


@pytest.fixture(scope="module")
def texts(target: Any) -> list[list[int]]:
    """The target's own texts behind the prompts."""
    plain = Speculator.from_transformers(target, byte_level(), method="none")
    return [plain.generate(prompt, **SHORT).ids for prompt in PROMPTS]


@pytest.mark.parametrize("method", every_other(METHODS_OF_PAIRS, first=True))
def test_texts_are_the_targets(target: Any, draft: Any, texts: list[list[int]], method: str) -> None:
    """Guards every method on two vocabularies: greedy texts are plain decoding's, alone and in a batch, and a note."""
    speculator = Speculator.from_transformers(
        target, byte_level(), method=method, draft_model=draft, draft_tokenizer=byte_level(FEWER), nodes=4
    )
    first = speculator.generate(PROMPTS[0], **SHORT)
    assert first.ids == texts[0]
    assert [each.ids for each in speculator.generate_batch(PROMPTS, size=2, **SHORT)] == texts
    assert any("target tokens" in note for note in first.stats.notes)
    assert method == "uag" or first.stats.accepted > 5


def test_sampled_texts_of_uag_are_those_of_plain_decoding(target: Any, draft: Any) -> None:
    """Guards chosen drafts: with a seed the text is the one without drafts."""
    options: dict[str, Any] = {"max_new_tokens": 16, "temperature": 0.8, "seed": 5}
    plain = Speculator.from_transformers(target, byte_level(), method="none").generate(PROMPTS[0], **options)
    speculator = Speculator.from_transformers(
        target, byte_level(), method="uag", draft_model=draft, draft_tokenizer=byte_level(FEWER)
    )
    assert speculator.generate(PROMPTS[0], **options).ids == plain.ids


def test_sampled_texts_follow_their_seed(target: Any, draft: Any) -> None:
    """Guards sampling from the shared tokens: a seed gives a text again, tokens are accepted."""
    speculator = Speculator.from_transformers(
        target, byte_level(), method="draft-model", draft_model=draft, draft_tokenizer=byte_level(FEWER), nodes=4
    )
    options: dict[str, Any] = {"max_new_tokens": 16, "temperature": 0.8, "seed": 5}
    first = speculator.generate(PROMPTS[0], **options)
    assert speculator.generate(PROMPTS[0], **options).ids == first.ids
    assert first.stats.accepted > 0


@pytest.mark.parametrize("method", ["draft-model", "uag"])
def test_texts_longer_than_the_draft_models_positions(target: Any, method: str) -> None:
    """Guards the end of the draft model's positions, and prompts beyond it: decoding goes on without drafts."""
    short = deep_model("gpt2", vocab_size=THEIRS)
    config = type(short.config)(**{**short.config.to_dict(), "n_positions": 20})
    short = type(short)(config).eval()
    plain = Speculator.from_transformers(target, byte_level(), method="none")
    speculator = Speculator.from_transformers(
        target, byte_level(), method=method, draft_model=short, draft_tokenizer=sentencepiece(), nodes=4
    )
    for prompt in ("The dog", "The little dog ran to the big house and saw a bird. " * 3):
        text = plain.generate(prompt, max_new_tokens=20, temperature=0).ids
        assert speculator.generate(prompt, max_new_tokens=20, temperature=0).ids == text


@pytest.mark.parametrize(
    ("draft_type", "target_type"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
@pytest.mark.parametrize("method", ["draft-model", "mcsd", "uag"])
def test_dtypes_of_a_pair_may_differ(method: str, draft_type: torch.dtype, target_type: torch.dtype) -> None:
    """Guards mixed dtypes: q is compared in p's type, greedy texts are the target's."""
    target, draft = deep_model("llama", vocab_size=OURS).to(target_type), deep_model("llama", vocab_size=OURS)
    speculator = Speculator.from_transformers(
        target,
        byte_level(),
        method=method,
        draft_model=draft.to(draft_type),
        draft_tokenizer=byte_level(),
        nodes=4,
        fast=False,
    )
    plain = Speculator.from_transformers(target, byte_level(), method="none", fast=False)
    result = speculator.generate(PROMPTS[0], max_new_tokens=12, temperature=0)
    if target_type == torch.float32:
        assert result.ids == plain.generate(PROMPTS[0], max_new_tokens=12, temperature=0).ids
    assert method == "uag" or result.stats.accepted > 3
    sampled = speculator.generate(PROMPTS[0], max_new_tokens=12, temperature=1.0, seed=1)
    assert method == "uag" or sampled.stats.accepted > 1


def test_relations() -> None:
    """Guards what is compared: names at ids, never sizes alone."""
    sizes = {"vocabulary": OURS, "draft_vocabulary": OURS}
    assert compare_pair(byte_level(), byte_level(), **sizes).relation == "same"
    padded = compare_pair(byte_level(), byte_level(), vocabulary=OURS, draft_vocabulary=OURS + 64)
    assert (padded.relation, padded.translation) == ("padded", None)
    other = compare_pair(byte_level(), byte_level(end="<|stop|>"), **sizes)
    assert other.relation == "different"
    assert other.translation is not None
    assert len(other.translation.shared) == OURS
    assert compare_pair(None, byte_level(), **sizes).relation == "unknown"
    assert compare_pair(None, None, vocabulary=OURS, draft_vocabulary=4096).relation == "different"
    assert "WordPiece" in compare_pair(byte_level(), wordpiece(), **sizes).obstacle


def test_equal_sizes_with_other_tokens_are_translated(target: Any) -> None:
    """Guards the silent garbage of other engines: the same number of tokens is not the same vocabulary."""
    speculator = Speculator.from_transformers(
        target,
        byte_level(),
        method="draft-model",
        draft_model=deep_model("llama", vocab_size=OURS),
        draft_tokenizer=sentencepiece(OURS),
    )
    notes = speculator.generate("The dog", max_new_tokens=3, temperature=0).stats.notes
    assert any("another tokenizer" in note for note in notes)


def test_what_was_not_compared_is_noted(target: Any) -> None:
    """Guards pairs without tokenizers: they are used if sizes agree, and a note says that nothing was compared."""
    speculator = Speculator.from_transformers(target, method="draft-model", draft_model=target)
    notes = speculator.generate([3, 4, 5], max_new_tokens=3, temperature=0).stats.notes
    assert any("not compared" in note for note in notes)
    same = Speculator.from_transformers(
        target, byte_level(), method="draft-model", draft_model=target, draft_tokenizer=byte_level()
    )
    notes = same.generate([3, 4, 5], max_new_tokens=3, temperature=0).stats.notes
    assert not any("compared" in note or "tokenizer" in note for note in notes)


@pytest.mark.parametrize(
    ("method", "tokenizer", "draft_tokenizer", "size", "error", "reason"),
    [
        ("draft-model", None, None, 900, TokenizerError, r"900 tokens and the target 320.*draft_tokenizer="),
        ("draft-model", byte_level, None, 900, TokenizerError, "no tokenizer of the draft model"),
        ("draft-model", None, sentencepiece, 900, TokenizerError, "no tokenizer of the target"),
        ("draft-model", byte_level, wordpiece, 320, TokenizerError, "WordPiece"),
        ("mcsd", byte_level, lambda: sentencepiece(30, fallback=False), 30, UnsupportedError, "'uag'"),
        ("uag", byte_level, None, 320, TokenizerError, "needs both tokenizers"),
        ("contrastive", byte_level, sentencepiece, 340, UnsupportedError, "every token"),
    ],
)
def test_pairs_that_cannot_be_used_are_refused(
    target: Any, method: str, tokenizer: Any, draft_tokenizer: Any, size: int, error: type[Exception], reason: str
) -> None:
    """Guards the reason and the way out."""
    with pytest.raises(error, match=reason):
        Speculator.from_transformers(
            target,
            tokenizer and tokenizer(),
            method=method,
            draft_model=deep_model("llama", vocab_size=size),
            draft_tokenizer=draft_tokenizer and draft_tokenizer(),
        )


def test_a_tokenizer_without_a_draft_model_is_refused(target: Any) -> None:
    """Guards an option that would be ignored."""
    with pytest.raises(UsageError, match="belongs to a draft model"):
        Speculator.from_transformers(target, byte_level(), draft_tokenizer=sentencepiece())


def test_a_folder_brings_its_tokenizer(target: Any, draft: Any, tmp_path: Path) -> None:
    """Guards names: the tokenizer of the folder is found and compared."""
    draft.save_pretrained(tmp_path)
    byte_level(FEWER).save_pretrained(tmp_path)
    speculator = Speculator.from_transformers(target, byte_level(), method="mcsd", draft_model=tmp_path)
    assert any("another tokenizer" in note for note in speculator.engine.notes)


@data
@pytest.mark.parametrize("method", ["draft-model", "uag"])
def test_a_real_pair(method: str) -> None:
    """Guards real text: stories of the bundled model with a draft model of 512 tokens, some of which are accepted."""
    model, tokenizer = load_model(device="cpu")
    plain = Speculator.from_transformers(model, tokenizer, method="none")
    speculator = Speculator.from_transformers(model, tokenizer, method=method, draft_model=str(FOREIGN), nodes=5)
    prompt = "Once upon a time there was a little dog who"
    result = speculator.generate(prompt, max_new_tokens=60, temperature=0)
    assert result.ids == plain.generate(prompt, max_new_tokens=60, temperature=0).ids
    assert result.stats.accepted > 15
