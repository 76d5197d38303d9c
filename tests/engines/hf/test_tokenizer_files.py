"""Tokenizers from a single file: Llama 2's of SentencePiece and Llama 3's of tiktoken, and files of neither."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from speculant.api.loading import load_tokenizer
from speculant.core.errors import TokenizerError
from speculant.engines.hf.tokenizer_files import load_tokenizer_file

DATA = os.environ.get("SPECULANT_DATA")


@pytest.mark.skipif(DATA is None, reason="SPECULANT_DATA names no folder")
def test_sentencepiece() -> None:
    """Text survives, with its spaces, and ids are those that the library gives: a leading space is a token's own."""
    pytest.importorskip("sentencepiece")
    tokenizer = load_tokenizer(str(Path(str(DATA)) / "tokenizers" / "llama2-32k.model"))
    assert len(tokenizer) == 32000
    assert len(tokenizer.get_vocab()) == 32000
    ids = tokenizer(["Hello  world", "a"])["input_ids"]
    assert ids[0][0] == 15043
    assert tokenizer.decode(ids[0]) == "Hello  world"
    assert tokenizer.encode("a") == ids[1]


def test_llama_3(tmp_path: Path) -> None:
    """A file of tiktoken with as many tokens as Llama 3's has its pattern and its special ids."""
    pytest.importorskip("tiktoken")
    tokens = [bytes([i]) for i in range(256)]
    tokens += [b"he", b"hello"] + [b"\xff" + i.to_bytes(3, "big") for i in range(128_000 - 258)]
    lines = [b"%s %d" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"\n".join(lines) + b"\n")
    tokenizer = load_tokenizer_file(path)
    assert len(tokenizer) == 128_256
    assert tokenizer("hello!")["input_ids"][0][-1] == ord("!")
    assert tokenizer.decode(tokenizer.encode("hello you")) == "hello you"
    path.write_bytes(b"\n".join(lines[:300]) + b"\n")
    with pytest.raises(TokenizerError, match="300 tokens, whose pattern is not known"):
        load_tokenizer_file(path)


def test_other_files(tmp_path: Path) -> None:
    """A text is refused with the way out."""
    pytest.importorskip("sentencepiece")
    (tmp_path / "x").write_text("no tokenizer")
    with pytest.raises(TokenizerError, match="neither a SentencePiece"):
        load_tokenizer(str(tmp_path / "x"))
