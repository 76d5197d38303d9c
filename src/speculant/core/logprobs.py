"""Log-probabilities of committed tokens, and the interface of their recorder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from speculant.core.engine import EngineArray


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at the position of one committed token.

    They are the log-softmax of the target's own logits, before processors, constraints and temperature, as vLLM's
    `logprobs_mode="raw_logprobs"` reports them.

    Attributes:
        logprob: log-probability of the token itself.
        top_ids: the most probable tokens, best first; their number is set by the request.
        top_logprobs: log-probabilities of `top_ids`.
        rank: rank of the token itself among all tokens, 1 for the most probable; 0 if ranks are not recorded.
    """

    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]
    rank: int = 0


class LogprobRecorder(Protocol):
    """Records the log-probabilities of one request."""

    def record(self, logits: EngineArray, rows: Sequence[int], tokens: Sequence[int]) -> list[TokenLogprobs]:
        """Return the log-probabilities of tokens [n], where token i follows row `rows[i]` of the logits [R, V]."""
