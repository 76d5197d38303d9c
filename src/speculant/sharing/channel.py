"""The contract of a channel: where replicas exchange the tokens that they commit.

Sharing never decides over text. A channel may lose, repeat or reorder pieces; what arrives is learned by the drafter,
whose drafts the target verifies as always.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from speculant.core.tree import Int32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedTokens:
    """Consecutive tokens of one request.

    Attributes:
        replica: who published it; a random number per channel. 0 before it is published.
        request: number of the request within its replica.
        start: position of the first token in the request's text, which begins with its prompt.
        tokens: Int32[T].
        prompt: how many of them, the first ones, belong to the prompt.
        ended: whether the request ends with them.
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
        """Take a piece to be published; return at once, and never raise: what cannot be published is dropped."""

    def poll(self, timeout: float) -> list[SharedTokens]:
        """Return pieces that other replicas published, after at most `timeout` seconds; never raise.

        Their tokens are in the vocabulary; nothing else about them can be trusted.
        """

    def close(self) -> None:
        """Publish what is left if that takes no longer than a second, then end."""
