"""Tokenizers from a single file: SentencePiece models, and the tiktoken format of Llama 3.

They serve commands that only encode text, such as `speculant corpus build` and `speculant replay`: transformers reads
such files only as part of a model's folder, and encodes some differently from the library that wrote them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from pathlib import Path

from speculant.core.errors import TokenizerError

_LLAMA3_RANKS, _LLAMA3_SPECIAL = 128_000, 256
_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class FileTokenizer:
    """Encodes and decodes text without special tokens: the part of transformers' tokenizer interface that texts need.

    Attributes:
        chat_template, bos_token: None, since such files have none.
        all_special_ids: empty, since special tokens are never encoded.
    """

    chat_template: str | None = None
    bos_token: str | None = None
    all_special_ids: tuple[int, ...] = ()

    def __init__(
        self, size: int, vocabulary: dict[str, int], encode: Callable[[str], list[int]], decode: Callable[..., str]
    ) -> None:
        """Take the number of ids, the ids of tokens, and functions that encode a text and decode ids."""
        self._size, self._vocabulary, self._encode, self._decode = size, vocabulary, encode, decode

    def __call__(self, texts: str | Sequence[str], **_options: object) -> dict[str, list[list[int]]]:
        """Return the ids of texts, under "input_ids"."""
        return {"input_ids": [self._encode(text) for text in ([texts] if isinstance(texts, str) else texts)]}

    def __len__(self) -> int:
        return self._size

    def encode(self, text: str, **_options: object) -> list[int]:
        """Return the ids of a text."""
        return self._encode(text)

    def decode(self, ids: Sequence[int], **_options: object) -> str:
        """Return the text of ids."""
        return self._decode([int(each) for each in ids])

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token."""
        return dict(self._vocabulary)


def load_tokenizer_file(path: Path) -> FileTokenizer:
    """Load the tokenizer of a file.

    Raises:
        TokenizerError: the file cannot be read or is of an unknown kind, or the package that reads it is not installed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"cannot read {path}: {error.strerror}.") from error
    ranks = _ranks(content)
    try:
        return _sentencepiece(path) if ranks is None else _llama3(path, ranks)
    except ImportError as error:
        raise TokenizerError(
            f"{path} is read by {error.name}, which is not installed: pip install {error.name}."
        ) from error


def _ranks(content: bytes) -> dict[bytes, int] | None:
    """Return the ranks of a tiktoken file (lines of a base64 token and its rank); None for any other file."""
    try:
        pairs = (line.split() for line in content.splitlines() if line)
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except (ValueError, binascii.Error):
        return None


def _llama3(path: Path, ranks: dict[bytes, int]) -> FileTokenizer:
    import tiktoken

    if len(ranks) != _LLAMA3_RANKS:
        raise TokenizerError(
            f"{path} is a tiktoken file with {len(ranks)} tokens, whose pattern is not known; only Llama 3's is, with "
            f"{_LLAMA3_RANKS}. Name a folder that has tokenizer.json."
        )
    encoding = tiktoken.Encoding("llama3", pat_str=_LLAMA3_PATTERN, mergeable_ranks=ranks, special_tokens={})
    vocabulary = {token.decode("latin-1"): rank for token, rank in ranks.items()}
    size = _LLAMA3_RANKS + _LLAMA3_SPECIAL
    return FileTokenizer(size, vocabulary, encoding.encode_ordinary, encoding.decode)


def _sentencepiece(path: Path) -> FileTokenizer:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.Load(str(path))
    except (RuntimeError, OSError) as error:
        raise TokenizerError(
            f"{path} is neither a SentencePiece nor a tiktoken file. Name a folder that has tokenizer.json."
        ) from error
    size = processor.vocab_size()
    vocabulary = {processor.id_to_piece(i): i for i in range(size)}
    return FileTokenizer(size, vocabulary, processor.encode, processor.decode)
