"""A piece of played text in which every token knows where it came from: an accepted draft or the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speculant.api.detokenizer import Detokenizer
from speculant.bench.replay.player import Played
from speculant.bench.replay.traces import Recording

TOKENS = 240
_BEFORE = 8  # tokens of the prompt that the first piece is spaced after


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a token, or its id; whether it was drafted; whether a round begins with it."""

    text: str
    drafted: bool
    begins: bool


def last_excerpt(played: Played, recordings: Sequence[Recording], tokenizer: Any = None) -> list[Piece]:
    """Return the beginning of the last request's output, when the memory has learned all the others.

    Without a tokenizer the pieces are token ids.
    """
    recording = recordings[-1]
    detokenizer = Detokenizer(tokenizer, recording.prompt[-_BEFORE:].tolist())
    output = recording.output.tolist()
    pieces: list[Piece] = []
    at = 0
    for accepted in played.accepted[played.request == len(recordings) - 1].tolist():
        for place in range(accepted + 1):
            token = output[at]
            text = f"{token} " if tokenizer is None else detokenizer.push(token)
            pieces.append(Piece(text, place < accepted, place == 0))
            at += 1
        if at >= TOKENS:
            break
    return pieces
