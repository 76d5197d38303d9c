"""Streaming text: pieces join to the whole, and no character is shown before it is whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from speculant.api.detokenizer import Detokenizer, SpecialTokens

TEXT = st.text(alphabet="ab \n\u00e9\u20ac\U0001f600", max_size=20)


class Adapter:
    """A bare tokenizer behind the call that transformers' tokenizers answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        tokenizer.add_special_tokens(["<s>"])
        self.special = tokenizer.token_to_id("<s>")

    def decode(self, ids: list[int], **options: Any) -> str:
        assert not options.pop("clean_up_tokenization_spaces", False)
        return self.tokenizer.decode(ids, **options)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids


def byte_level() -> Adapter:
    """Make a tokenizer with one token per byte, as GPT-2's without its merges."""
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Adapter(tokenizer)


def byte_fallback() -> Adapter:
    """Make a tokenizer as Llama 2's: a mark for spaces, bytes for what is not in the vocabulary."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a", "ab"]
    merges = [("\u2581", "a"), ("a", "b")]
    model = models.BPE({c: i for i, c in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return Adapter(tokenizer)


BYTE_LEVEL, BYTE_FALLBACK = byte_level(), byte_fallback()


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte-level", "byte-fallback"])
@given(text=TEXT, places=st.lists(st.integers(0, 20), max_size=3))
def test_pieces_join_to_the_whole(tokenizer: Adapter, text: str, places: list[int]) -> None:
    """The pieces of a text are its decoding, special tokens left out, and no piece holds a broken character."""
    ids = tokenizer.encode(text)
    for place in places:
        ids.insert(place, tokenizer.special)
    stream = Detokenizer(tokenizer)
    pieces = [stream.push(token) for token in ids]
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    whole = tokenizer.tokenizer.decode(ids)
    assert "".join(pieces) + stream.flush() == whole
    if tokenizer is BYTE_LEVEL and not places:
        assert whole == text


@given(text=TEXT)
def test_characters_come_as_soon_as_they_are_whole(text: str) -> None:
    """After every byte, exactly the whole characters so far are out."""
    stream = Detokenizer(BYTE_LEVEL)
    seen = ""
    for i, token in enumerate(BYTE_LEVEL.encode(text)):
        seen += stream.push(token)
        assert seen == text.encode()[: i + 1].decode(errors="ignore")


@given(st.lists(st.sampled_from(BYTE_LEVEL.encode("a\u20ac\U0001f600 ")), max_size=12))
def test_broken_bytes_lose_nothing(ids: list[int]) -> None:
    """Bytes that never become a character come out as the tokenizer decodes them, the last ones at the end."""
    stream = Detokenizer(BYTE_LEVEL)
    assert "".join(stream.push(token) for token in ids) + stream.flush() == BYTE_LEVEL.tokenizer.decode(ids)
    assert stream.flush() == ""


def test_without_a_tokenizer_there_is_no_text() -> None:
    """Requests in bare ids stream nothing, and do not fail."""
    stream = Detokenizer(None)
    assert stream.push(3) == stream.flush() == ""


class Spaced:
    """A tokenizer that joins tokens by spaces, as transformers' own do with special ones; 9 is special."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool = False) -> str:
        return " ".join("</s>" if token == 9 else str(token) for token in ids if token != 9 or not skip_special_tokens)


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        (SpecialTokens(), " 1 2"),
        (SpecialTokens(skip=False), " 1 </s> </s> 2 </s>"),
        (SpecialTokens(skip=False, spaced=False), " 1 </s></s> 2 </s>"),
    ],
)
def test_special_tokens(special: SpecialTokens, expected: str) -> None:
    """Special tokens are left out or shown, and with them the spaces between two; the one at the end is never shown."""
    detokenizer = Detokenizer(Spaced(), [3], special=special)
    text = "".join(map(detokenizer.push, [1, 9, 9, 2, 9])) + detokenizer.push_end(9) + detokenizer.flush()
    assert text == expected
