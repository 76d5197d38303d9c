"""Log-probabilities of tokens in the formats of OpenAI's two endpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from speculant.core.logprobs import TokenLogprobs
from speculant.serving.exchange import Delta

TokenText = Callable[[int], str]
Entries = list[tuple[int, TokenLogprobs]]
PromptEntries = Sequence[tuple[int, TokenLogprobs | None]]  # None for a prompt's first token


def entries_of(delta: Delta) -> Entries:
    """Return the tokens of a delta that are part of the text, with log-probabilities; empty if not requested."""
    if delta.piece is None or delta.piece.logprobs is None:
        return []
    return list(zip(delta.piece.tokens, delta.piece.logprobs, strict=True))[: delta.tokens]


def chat_logprobs(entries: Entries, text: TokenText) -> dict[str, Any]:
    """Return the `logprobs` of a chat's choice or chunk."""
    content = [
        _make_entry(text(token), each.logprob)
        | {
            "top_logprobs": [
                _make_entry(text(other), value) for other, value in zip(each.top_ids, each.top_logprobs, strict=True)
            ]
        }
        for token, each in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(entries: PromptEntries, text: TokenText, *, maximum: int, offset: int) -> dict[str, Any]:
    """Return the `logprobs` of a completion's choice or chunk.

    Args:
        entries: its tokens.
        text: returns a token's text.
        maximum: maximum number of alternatives per token; more may be recorded.
        offset: where its first token begins; negative if tokens are not part of the text, such as a BOS token.
    """
    texts = [text(token) for token, _ in entries]
    return {
        "tokens": texts,
        "token_logprobs": [None if each is None else each.logprob for _, each in entries],
        "top_logprobs": [
            None
            if each is None
            else {text(other): value for other, value in zip(each.top_ids[:maximum], each.top_logprobs, strict=False)}
            for _, each in entries
        ],
        "text_offset": _offsets(texts, offset),
    }


def prompt_logprobs(entries: PromptEntries, text: TokenText, *, maximum: int) -> list[dict[str, Any] | None]:
    """Return the `prompt_logprobs` of a response, in vLLM's format: by token id, the prompt's own token first."""
    return [None if each is None else _rank(token, each, text, maximum) for token, each in entries]


def _rank(token: int, found: TokenLogprobs, text: TokenText, maximum: int) -> dict[str, Any]:
    best = zip(found.top_ids[:maximum], found.top_logprobs, range(1, maximum + 1), strict=False)
    return {
        str(each): {"logprob": value, "rank": rank, "decoded_token": text(each)}
        for each, value, rank in [(token, found.logprob, found.rank), *best]
    }


def _make_entry(text: str, logprob: float) -> dict[str, Any]:
    """Return an entry; a token that is part of a character has no text, hence no bytes."""
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}


def _offsets(texts: Sequence[str], offset: int) -> list[int]:
    found = []
    for text in texts:
        found.append(max(0, offset))
        offset += len(text)
    return found
