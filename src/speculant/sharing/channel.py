"""The interface of a channel, through which replicas exchange committed tokens.

Sharing never affects the output. A channel may lose, repeat or reorder pieces; the drafter learns what arrives, and the
target verifies its drafts as always.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from speculant.core.tree import Int32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedTokens:
    """Consecutive tokens of one request.

    Attributes:
        replica: the publisher, a random number per channel; 0 before it is published.
        request: number of the request within its replica.
        start: position of the first token in the request's text, which begins with its prompt.
        tokens: Int32[T].
        prompt: number of first tokens that belong to the prompt.
        ended: whether the request ends with these tokens.
    """

    replica: int = 0
    request: int
    start: int
    tokens: Int32
    prompt: int = 0
    ended: bool = False


@runtime_checkable
class Channel(Protocol):
    """Carries pieces between the replicas of one tenant and one tokenizer; safe to share between threads."""

    def publish(self, piece: SharedTokens) -> None:
        """Queue a piece for publishing; returns at once and never raises. What cannot be published is dropped."""

    def poll(self, timeout: float) -> list[SharedTokens]:
        """Return pieces that other replicas published, after at most `timeout` seconds; never raises.

        Their tokens are within the vocabulary; nothing else about them can be trusted.
        """

    def close(self) -> None:
        """Publish what is left, for at most a second, then close."""
