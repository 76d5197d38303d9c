"""Recent throughput: tokens per unit of time, which is the price of a round's time."""

from __future__ import annotations

_DECAY = 0.98  # per round
_PRIOR = 10.0  # weight of earlier requests' measurements in a new one, in plain passes


class Throughput:
    """Decayed sums of tokens and of time; time is in units of the latency model."""

    def __init__(self, begin: Throughput | None = None) -> None:
        """Begin with part of what earlier requests measured, or with nothing."""
        self._tokens, self._time = 0.0, 0.0
        if begin is not None and begin._time:
            kept = min(1.0, _PRIOR / begin._time)
            self._tokens, self._time = kept * begin._tokens, kept * begin._time

    def rate(self, plain: float) -> float:
        """Return tokens per unit of time, at least those of plain decoding, `plain`, which is always available."""
        return max(plain, self._tokens / self._time) if self._time else plain

    def observe(self, tokens: int, time: float) -> None:
        """Add a round that committed `tokens` tokens in `time`."""
        self._tokens, self._time = _DECAY * self._tokens + tokens, _DECAY * self._time + time
