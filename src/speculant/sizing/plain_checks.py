"""Rounds without a draft whose only purpose is to measure plain decoding.

What drafts gain is their time compared with that of plain decoding. Where every round has a draft, the cost of plain
rounds is only inferred from passes with drafts, and one that is believed too high lets drafts lose for ever: the first
passes of a process are slow, and in a large batch one text or another always drafts. So from time to time all texts
rest for one round: often at first, later rarely, and least where drafts gain so much that an error of the cost would
not matter. Its pass still returns what the next draft needs, such as the target's top tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

_FIRST = 4  # passes with drafts until the first check; the number doubles with each
_OFTEN, _SELDOM = 64, 512  # its maximum, and that where drafts gain a lot
_LARGE = 1.3  # believed speed relative to plain decoding from which drafts gain a lot
_DECAY = 0.95  # of the sums that tell this speed, per pass with drafts


@dataclass(slots=True)
class _Passes:
    """Passes with similar numbers of sequences.

    Attributes:
        since: passes with drafts since the last one without.
        interval: number of such passes after which plain decoding is measured, as far as gains do not limit it.
        tokens, time: decayed sums of their tokens, and of their time in tokens of plain decoding.
    """

    since: int = 0
    interval: int = _FIRST
    tokens: float = 0.0
    time: float = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time to measure plain decoding."""
        gains = self.tokens > _LARGE * self.time
        return self.since >= min(self.interval, _SELDOM if gains else _OFTEN)


class PlainChecks:
    """Decides when a round goes without drafts to measure plain decoding; shared by all requests."""

    def __init__(self) -> None:
        self._passes: dict[int, _Passes] = {}

    def is_due(self, sequences: int) -> bool:
        """Return whether the next round of so many sequences should go without drafts."""
        passes = self._passes.get(sequences.bit_length())
        return passes is not None and passes.due

    def observe(self, sequences: int, *, drafted: bool, tokens: int, time: float) -> None:
        """Add a round.

        Args:
            sequences: number of sequences.
            drafted: whether its pass was not a plain one.
            tokens: number of tokens committed.
            time: its time, in tokens that plain decoding would have yielded.
        """
        passes = self._passes.setdefault(sequences.bit_length(), _Passes())
        if drafted:
            passes.since += 1
            passes.tokens, passes.time = _DECAY * passes.tokens + tokens, _DECAY * passes.time + time
        else:
            if passes.due:
                passes.interval = min(2 * passes.interval, _SELDOM)
            passes.since = 0
