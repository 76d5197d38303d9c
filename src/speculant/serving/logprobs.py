"""Log-probabilities of tokens in the forms of OpenAI's two endpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from speculant.core.logprobs import TokenLogprobs
from speculant.serving.exchange import Delta

TokenText = Callable[[int], str]
Entries = list[tuple[int, TokenLogprobs]]


def entries_of(delta: Delta) -> Entries:
    """Return the tokens of a delta that are in the text, with their log-probabilities; empty where none were asked."""
    if delta.piece is None or delta.piece.logprobs is None:
        return []
    return list(zip(delta.piece.tokens, delta.piece.logprobs, strict=True))[: delta.tokens]


def chat_logprobs(entries: Entries, text: TokenText) -> dict[str, Any]:
    """Return the `logprobs` of a chat's choice or chunk."""
    content = [
        _named(text(token), each.logprob)
        | {
            "top_logprobs": [
                _named(text(other), value) for other, value in zip(each.top_ids, each.top_logprobs, strict=True)
            ]
        }
        for token, each in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Entries, text: TokenText, *, offset: int) -> dict[str, Any]:
    """Return the `logprobs` of a completion's choice or chunk; `offset` is where its first token begins."""
    texts = [text(token) for token, _ in entries]
    return {
        "tokens": texts,
        "token_logprobs": [each.logprob for _, each in entries],
        "top_logprobs": [
            {text(other): value for other, value in zip(each.top_ids, each.top_logprobs, strict=True)}
            for _, each in entries
        ],
        "text_offset": _offsets(texts, offset),
    }


def _named(text: str, logprob: float) -> dict[str, Any]:
    """Return an entry; a token that is part of a character has no text, and so no bytes that could be told."""
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}


def _offsets(texts: Sequence[str], offset: int) -> list[int]:
    found = []
    for text in texts:
        found.append(offset)
        offset += len(text)
    return found
