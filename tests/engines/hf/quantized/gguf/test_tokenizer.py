"""The tokenizer of a GGUF file gives the ids that llama.cpp gives, and knows where a text ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gguf_families import family_file
from gguf_vocabularies import TEXTS, byte_level_file, sentencepiece_file, write_tokens
from ggufs import bundled_gguf, needs_llamacpp
from speculant.api.loading import load_tokenizer
from speculant.core.errors import ModelError, TokenizerError, UnsupportedError
from speculant.engines.hf.quantized.gguf.file import open_gguf
from speculant.engines.hf.quantized.gguf.splits import SPLITS
from speculant.engines.hf.quantized.gguf.tokenizer import build_tokenizer, read_vocabulary
from speculant.memory.fingerprint import tokenizer_fingerprint

pytestmark = pytest.mark.peers

LONG = Path(__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize("split", ["llama-bpe", "smaug-bpe", "qwen2", "tekken", "gpt-4o", "smollm", "gpt-2", "default"])
def test_byte_level(split: str) -> None:
    """Every way to split texts, with special tokens in them and the file's own."""
    assert split in SPLITS
    _compare(byte_level_file(split))


@pytest.mark.skipif("SPECULANT_DATA" not in os.environ, reason="SPECULANT_DATA names no folder with the model")
@pytest.mark.parametrize(
    ("spaced", "name"), [pytest.param(True, "", marks=pytest.mark.slow), (False, ""), (True, "Phi-3 mini")]
)
def test_sentencepiece(spaced: bool, name: str) -> None:
    """Llama 2's 32,000 pieces: merges by score, with and without a space in front, and Phi-3's own treatment of it."""
    _compare(sentencepiece_file(_llama2(), spaced=spaced, name=name))


def test_the_bundled_model() -> None:
    """Ids are those of the checkpoint's tokenizer too, so memories and bases of either fit the other."""
    ours, theirs = _compare(bundled_gguf()), load_tokenizer()
    for text in (*TEXTS, LONG):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    messages = [{"role": "user", "content": "Tell me a story."}]
    assert ours.apply_chat_template(messages, tokenize=False) == theirs.apply_chat_template(messages, tokenize=False)
    assert tokenizer_fingerprint(ours, len(ours)) == tokenizer_fingerprint(theirs, len(ours))


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"model": "bert"}, UnsupportedError, "a tokenizer of the kind 'bert'"),
        ({"pre": "unheard-of"}, UnsupportedError, "split as in 'unheard-of'"),
        ({"types": [1]}, ModelError, "one type each"),
        ({"rows": 3}, ModelError, r"has 3 rows"),
        ({"merges": ["q x"]}, ModelError, "merges do not fit"),
    ],
)
def test_what_cannot_be_read_is_refused(
    changes: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    """Other kinds, and damaged vocabularies, with the reason."""
    given = {"tokens": ["a", "b", "ab", "<s>"], "types": [1, 1, 1, 3], "merges": ["a b"], "model": "gpt2"} | changes
    path = write_tokens(tmp_path / "m.gguf", **given)
    with pytest.raises(error, match=said):
        _read(path)


def test_a_file_is_named_as_a_tokenizer() -> None:
    """Commands that need no model take the tokenizer of a file."""
    assert load_tokenizer(str(byte_level_file("qwen2"))).encode("a")
    with pytest.raises(TokenizerError, match="has no tokenizer"):
        load_tokenizer(str(family_file("qwen2")))


def test_a_message_of_harmony_does_not_end_the_text(tmp_path: Path) -> None:
    """<|end|> ends texts, unless the vocabulary has the tokens of gpt-oss that do."""
    for tokens, ends in ((["a", "<|end|>"], (1,)), (["a", "<|end|>", "<|return|>", "<|call|>"], (2, 3))):
        path = write_tokens(tmp_path / f"{len(tokens)}.gguf", tokens=tokens, types=[1] * len(tokens), merges=[])
        vocabulary = read_vocabulary(open_gguf(path))
        assert vocabulary is not None
        assert vocabulary.ends == ends


def _read(path: Path) -> Any:
    vocabulary = read_vocabulary(open_gguf(path))
    assert vocabulary is not None
    return build_tokenizer(vocabulary)


def _compare(path: Path) -> Any:
    needs_llamacpp()
    from speculant.engines.llamacpp.request_model import load_gguf

    theirs, vocabulary = load_gguf(path)[1], read_vocabulary(open_gguf(path))
    assert vocabulary is not None
    assert theirs is not None
    ours = build_tokenizer(vocabulary)
    for text in (*TEXTS, LONG):
        for special in (True, False):
            found = ours(text, add_special_tokens=special)["input_ids"]
            assert found == theirs(text, add_special_tokens=special)["input_ids"]
        for skip in (True, False):
            assert ours.decode(found, skip_special_tokens=skip) == theirs.decode(found, skip_special_tokens=skip)
    assert list(vocabulary.ends) == theirs.stop_ids
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.chat_template == theirs.chat_template
    assert len(ours) == len(theirs)
    return ours


def _llama2() -> Path:
    return Path(os.environ["SPECULANT_DATA"]) / "tokenizers" / "llama2-32k.model"
