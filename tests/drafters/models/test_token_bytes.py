"""The bytes of tokens, and text that goes on in another tokenizer."""

from __future__ import annotations

import pytest

from speculant.core.errors import TokenizerError
from speculant.drafters.models.token_bytes import TokenBytes, byte_alphabet
from vocabularies import TEXTS, byte_level, sentencepiece, unigram, wordpiece

TOKENIZERS = {"byte level": byte_level, "sentencepiece": sentencepiece, "unigram": unigram}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_bytes_are_those_of_the_text(name: str, text: str) -> None:
    """Guards the spellings: the bytes of a text's tokens are the text, up to the space that is put before it."""
    tokens = TokenBytes(TOKENIZERS[name]())
    found = tokens.join(tokens.tokenizer(text, add_special_tokens=False)["input_ids"])
    if name == "unigram" and tokens.tokenizer.unk_token_id in tokens.tokenizer(text)["input_ids"]:
        return
    assert found == (" " if tokens.leads_with_space else "").encode() + text.encode()
    assert tokens.leads_with_space == (name != "byte level")


@pytest.mark.parametrize("name", ["byte level", "sentencepiece"])
@pytest.mark.parametrize("text", [" dog", "dog", "og and the", "é", "犬 ", "\n\n", "  two", "</s>", "<|end|>", "a"])
def test_text_goes_on_without_a_space(name: str, text: str) -> None:
    """Guards re-encoding behind other text: every byte is there, none is added, ends are where tokens end."""
    tokens = TokenBytes(TOKENIZERS[name]())
    pieces = tokens.resume(text.encode())
    assert tokens.join([token for token, _ in pieces]) == text.encode()
    assert [end for _, end in pieces] == [
        len(tokens.join([token for token, _ in pieces[: i + 1]])) for i in range(len(pieces))
    ]
    assert not {token for token, _ in pieces} & set(tokens.specials.values())


def test_parts_of_characters_and_unknown_bytes() -> None:
    """Guards text that ends inside a character, and bytes that a tokenizer has no token for, which are left out."""
    with_bytes, without = TokenBytes(sentencepiece()), TokenBytes(sentencepiece(fallback=False, size=90))
    cut = " dog 犬".encode()[:-1]
    assert with_bytes.join([token for token, _ in with_bytes.resume(cut)]) == cut
    pieces = without.resume(" dog 犬 dog".encode())
    assert without.join([token for token, _ in pieces]) == b" dog  dog"
    assert pieces[-1][1] == len(" dog 犬 dog".encode())
    assert without.resume(b"") == []


def test_special_and_added_tokens() -> None:
    """Guards tokens beside the model's: special ones have no bytes, added ones are their text."""
    tokens = TokenBytes(byte_level())
    assert tokens.read(tokens.specials["<|end|>"]) == b""
    assert tokens.read(tokens.names["<think>"]) == b"<think>"
    assert tokens.read(10**6) == b""
    assert tokens.eos == tokens.specials["<|end|>"]
    assert tokens.bos is None
    assert TokenBytes(sentencepiece()).prefix == [1]
    assert TokenBytes(sentencepiece(begin=False)).prefix == []
    assert TokenBytes(sentencepiece()).begin(b"The")[0] == 1


def test_the_alphabet_is_that_of_gpt_2() -> None:
    """Guards the map of characters to bytes: 256 of each, Ġ for the space."""
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["Ċ"], alphabet["A"]) == (32, 10, 65)


def test_tokens_that_do_not_spell_text_are_refused() -> None:
    """Guards against silent garbage: WordPiece is named."""
    with pytest.raises(TokenizerError, match="WordPiece"):
        TokenBytes(wordpiece())


class Slow:
    """A tokenizer without a backend."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def get_vocab(self) -> dict[str, int]:
        """Return the vocabulary."""
        return {name: i for i, name in enumerate(self.names)}


def test_tokenizers_without_a_backend_are_known_by_their_names() -> None:
    """Guards slow tokenizers: ▁ or the byte alphabet shows the spelling, anything else is refused."""
    assert TokenBytes(Slow(["▁the", "<0x41>", "a"])).texts == (b" the", b"A", b"a")
    assert TokenBytes(Slow([*byte_alphabet(), "Ġthe"])).texts[-1] == b" the"
    with pytest.raises(TokenizerError, match="Slow"):
        TokenBytes(Slow(["the", "dog"]))
