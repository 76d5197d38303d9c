"""Log-probabilities of committed tokens: what is recorded, and the contract of what records them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from speculant.core.engine import Array


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at the position of one committed token.

    They are the log-softmax of the target's own logits, before processors, constraints and temperature, as vLLM's
    `logprobs_mode="raw_logprobs"` reports them.

    Attributes:
        logprob: of the token itself.
        top_ids: the most probable tokens, best first, as many as were asked for.
        top_logprobs: theirs.
        rank: the token's own place among all tokens, 1 for the most probable one; 0 where ranks are not recorded.
    """

    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]
    rank: int = 0


class LogprobRecorder(Protocol):
    """Records the log-probabilities of one request."""

    def record(self, logits: Array, rows: Sequence[int], tokens: Sequence[int]) -> list[TokenLogprobs]:
        """Return those of tokens [n], token i following row `rows[i]` of a pass with logits [R, V]."""
