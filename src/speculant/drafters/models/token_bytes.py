"""The bytes that each token of a tokenizer represents, so that tokens of two tokenizers can be compared and exchanged.

Vocabularies spell the same text in different ways: "Ġthe" (byte-level BPE) and "▁the" (SentencePiece) are both " the",
and "Ã©" and "<0xC3><0xA9>" are both "é". Bytes are what they have in common; they can also represent a token that ends
within a character.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from speculant.core.errors import TokenizerError

ANCHOR = "\n"  # put before a continuation when it is encoded, since tokenizers add a space at the start of a text
SPACE_MARK = "▁"


class TokenBytes:
    """A tokenizer, with the bytes of its tokens."""

    def __init__(self, tokenizer: Any) -> None:
        """Read the vocabulary.

        Args:
            tokenizer: tokenizer of transformers.

        Raises:
            TokenizerError: its tokens do not spell text piece by piece, as in WordPiece.
        """
        self.tokenizer = tokenizer
        spelling = _spelling(tokenizer)
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self.specials: dict[str, int] = {str(token): i for i, token in added.items() if token.special}
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        self.names = vocabulary
        texts: list[bytes | None] = [None] * (1 + max(vocabulary.values(), default=-1))
        for name, i in vocabulary.items():
            texts[i] = spelling.read(name)
        for i, token in added.items():
            if i < len(texts):
                texts[i] = None if token.special else str(token).encode()
        self.texts = tuple(texts)

    def read(self, token: int) -> bytes:
        """Return the bytes of a token; empty for special tokens and for ids without a token."""
        return (self.texts[token] if 0 <= token < len(self.texts) else None) or b""

    def name(self, token: int) -> str:
        """Return the name of a token in the vocabulary; empty for an id without a token."""
        return self._by_id.get(token, "")

    def join(self, tokens: list[int]) -> bytes:
        """Return the bytes of several tokens."""
        return b"".join(map(self.read, tokens))

    @property
    def eos(self) -> int | None:
        """The token that ends a text, or None."""
        return getattr(self.tokenizer, "eos_token_id", None)

    @property
    def bos(self) -> int | None:
        """The token that begins a text, or None."""
        return getattr(self.tokenizer, "bos_token_id", None)

    @cached_property
    def leads_with_space(self) -> bool:
        """Whether encoding adds a space before a text."""
        return self.join(self._encode("a")).startswith(b" ")

    @cached_property
    def prefix(self) -> list[int]:
        """The special tokens that encoding adds before a text."""
        whole, text = list(self.tokenizer("a")["input_ids"]), self._encode("a")
        places = range(len(whole) - len(text) + 1)
        return next((whole[:place] for place in places if whole[place : place + len(text)] == text), [])

    def begin(self, text: bytes) -> list[int]:
        """Return the tokens of a text from its beginning, including special tokens before it."""
        found = self._encode(text.decode(errors="ignore"))
        return [*self.prefix, *found]

    def resume(self, text: bytes) -> list[tuple[int, int]]:
        """Return the tokens of a text that continues another, each with the number of bytes up to its end.

        They are the tokenizer's own if it reproduces the text exactly; otherwise, as within a character or if the text
        looks like a special token, the longest ones that match. Bytes that no token represents are left out.
        """
        own = self._resume_exactly(text)
        if own is not None:
            return own
        found, place = list[tuple[int, int]](), 0
        while place < len(text):
            maximum = min(self._longest, len(text) - place)
            size = next((n for n in range(maximum, 0, -1) if text[place : place + n] in self._by_bytes), 0)
            place += size or 1
            if size:
                found.append((self._by_bytes[text[place - size : place]], place))
        return found

    def _resume_exactly(self, text: bytes) -> list[tuple[int, int]] | None:
        try:
            tokens = self._encode(ANCHOR + text.decode())
        except UnicodeDecodeError:
            return None
        before = self._anchor
        if tokens[: len(before)] != before or self.join(tokens[len(before) :]) != text:
            return None
        found, end = list[tuple[int, int]](), 0
        for token in tokens[len(before) :]:
            if not self.read(token):
                return None
            end += len(self.read(token))
            found.append((token, end))
        return found

    @cached_property
    def _anchor(self) -> list[int]:
        return self._encode(ANCHOR)

    @cached_property
    def _by_id(self) -> Mapping[int, str]:
        return {i: name for name, i in self.names.items()}

    @cached_property
    def _by_bytes(self) -> Mapping[bytes, int]:
        return {text: i for i, text in reversed(list(enumerate(self.texts))) if text}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_bytes), default=0)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass(frozen=True, slots=True)
class _Spelling:
    """How the names in a vocabulary are read.

    Attributes:
        alphabet: byte for each character of a byte-level name; empty if names are text.
        space: replacement for a space in names that are text.
        fallback: whether names such as <0x0A> are bytes.
    """

    alphabet: Mapping[str, int]
    space: str = SPACE_MARK
    fallback: bool = True

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a name; None if it is spelled differently, like added tokens."""
        if self.alphabet:
            known = [self.alphabet.get(character) for character in name]
            return None if None in known else bytes(byte for byte in known if byte is not None)
        if self.fallback and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            try:
                return bytes([int(name[3:5], 16)])
            except ValueError:
                pass
        return name.replace(self.space, " ").encode("utf-8", "surrogatepass")


def _spelling(tokenizer: Any) -> _Spelling:
    """Return how a tokenizer's vocabulary is spelled, from its decoder, or from the names if it exposes none.

    Raises:
        TokenizerError: tokens do not spell text piece by piece.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    parts = {} if decoder is None else _parts(json.loads(decoder.__getstate__()))
    if "ByteLevel" in parts:
        return _Spelling(byte_alphabet())
    fallback = "ByteFallback" in parts
    if "Metaspace" in parts:
        return _Spelling({}, parts["Metaspace"].get("replacement", SPACE_MARK), fallback)
    if parts.get("Replace", {}).get("content") == " ":
        return _Spelling({}, parts["Replace"]["pattern"].get("String", SPACE_MARK), fallback)
    if backend is None:
        names = list(tokenizer.get_vocab())
        if any(name.startswith(SPACE_MARK) for name in names):
            return _Spelling({})
        alphabet = byte_alphabet()
        if sum(name in alphabet for name in names) >= 200 and any(name.startswith("Ġ") for name in names):
            return _Spelling(alphabet)
    kind = " and ".join(sorted(parts)) or type(tokenizer).__name__
    raise TokenizerError(
        f"tokens of this tokenizer ({kind}) do not spell text piece by piece, so it cannot be compared with another "
        "one. Use a draft model with the target's tokenizer."
    )


def _parts(decoder: Any) -> dict[str, Any]:
    """Return the steps of a decoder by type, the first of each type."""
    found: dict[str, Any] = {}
    for step in decoder.get("decoders", [decoder]):
        for kind, part in (_parts(step) if "decoders" in step else {step["type"]: step}).items():
            found.setdefault(kind, part)
    return found


def byte_alphabet() -> dict[str, int]:
    """Return the byte for each character of byte-level BPE: printable ones are themselves, the others follow 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
