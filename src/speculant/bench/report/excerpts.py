"""An excerpt of replayed text with every token marked by its source: an accepted draft or the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from speculant.api.detokenizer import Detokenizer
from speculant.bench.replay.player import ReplayResult
from speculant.bench.replay.traces import Recording

MAX_TOKENS = 240
_CONTEXT = 8  # prompt tokens that the detokenizer needs to place spaces


@dataclass(frozen=True, slots=True)
class ExcerptToken:
    """A token of an excerpt.

    Attributes:
        text: its text, or its id without a tokenizer.
        drafted: whether it is an accepted draft.
        begins: whether it is the first of a round.
    """

    text: str
    drafted: bool
    begins: bool


def last_excerpt(result: ReplayResult, recordings: Sequence[Recording], tokenizer: Any = None) -> list[ExcerptToken]:
    """Return the start of the last request's output, drafted with what was learned from all other requests.

    Args:
        result: the replay of the recordings.
        recordings: recordings in replay order.
        tokenizer: tokenizer of the recordings; None to return token ids.
    """
    recording = recordings[-1]
    detokenizer = Detokenizer(tokenizer, recording.prompt[-_CONTEXT:].tolist())
    output = recording.output.tolist()
    pieces: list[ExcerptToken] = []
    at = 0
    for accepted in result.accepted[result.request == len(recordings) - 1].tolist():
        for place in range(accepted + 1):
            token = output[at]
            text = f"{token} " if tokenizer is None else detokenizer.push(token)
            pieces.append(ExcerptToken(text, place < accepted, place == 0))
            at += 1
        if at >= MAX_TOKENS:
            break
    return pieces
