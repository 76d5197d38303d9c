"""Encoding of stream messages: pieces of one replica as bytes.

Layout, little-endian: version UInt8, bytes per token UInt8 (2 or 3), replica UInt64, number of pieces UInt16; per piece
request UInt32, start UInt32, tokens UInt16, tokens of the prompt UInt16, ended UInt8; then the tokens of all pieces.
Messages come from other processes, which may have another version or be malicious: an invalid one is refused entirely.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from speculant.core.tree import Int32
from speculant.sharing.channel import SharedTokens

VERSION = 1
MAX_TOKENS = 8192  # per message
MAX_PIECES = 1024
_HEAD, _PIECE = struct.Struct("<BBQH"), struct.Struct("<IIHHB")
_WIDEST = 3
MAX_BYTES = _HEAD.size + MAX_PIECES * _PIECE.size + MAX_TOKENS * _WIDEST


class BadMessageError(ValueError):
    """The bytes are not a message of this version and vocabulary."""


def encode(pieces: Sequence[SharedTokens], replica: int) -> bytes:
    """Encode pieces, at most 1024 with 8192 tokens in total, as a message."""
    tokens = np.concatenate([piece.tokens for piece in pieces])
    width = 2 if not len(tokens) or int(tokens.max()) < 1 << 16 else _WIDEST
    parts = [_HEAD.pack(VERSION, width, replica, len(pieces))]
    for piece in pieces:
        parts.append(_PIECE.pack(piece.request, piece.start, len(piece.tokens), piece.prompt, piece.ended))
    parts.append(tokens.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width].tobytes())
    return b"".join(parts)


def decode(message: bytes, vocabulary: int) -> list[SharedTokens]:
    """Decode the pieces of a message, whose tokens must be below `vocabulary`.

    Raises:
        BadMessageError: the message is truncated, too long, of another version, or has invalid values.
    """
    if not _HEAD.size <= len(message) <= MAX_BYTES:
        raise BadMessageError(f"a message of {len(message)} bytes")
    version, width, replica, count = _HEAD.unpack_from(message)
    if version != VERSION or not 2 <= width <= _WIDEST or count > MAX_PIECES:
        raise BadMessageError(f"version {version}, {width} bytes per token, {count} pieces")
    body = _HEAD.size + count * _PIECE.size
    if body > len(message):
        raise BadMessageError("it ends inside its list of pieces")
    entries = [_PIECE.unpack_from(message, _HEAD.size + i * _PIECE.size) for i in range(count)]
    total = sum(entry[2] for entry in entries)
    if total > MAX_TOKENS or body + total * width != len(message):
        raise BadMessageError(f"{total} tokens in {len(message) - body} bytes")
    if any(prompt > length or ended > 1 for _, _, length, prompt, ended in entries):
        raise BadMessageError("a prompt longer than its piece, or an unknown flag")
    tokens = _unpack(message[body:], width)
    if total and int(tokens.max()) >= vocabulary:
        raise BadMessageError(f"token id {int(tokens.max())} in a vocabulary of {vocabulary}")
    pieces, at = [], 0
    for request, start, length, prompt, ended in entries:
        pieces.append(
            SharedTokens(
                replica=replica,
                request=request,
                start=start,
                tokens=tokens[at : at + length],
                prompt=prompt,
                ended=bool(ended),
            )
        )
        at += length
    return pieces


def _unpack(data: bytes, width: int) -> Int32:
    """Decode token ids of `width` bytes each."""
    wide = np.zeros((len(data) // width, 4), np.uint8)
    wide[:, :width] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return wide.view("<u4").reshape(-1).astype(np.int32)
