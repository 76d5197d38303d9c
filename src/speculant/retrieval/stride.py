"""Scheduler of the number of guesses per verification, after RaLMSpec (arXiv 2401.14021, section 4)."""

from __future__ import annotations

from collections import deque

WINDOW = 10  # number of recent verifications that the estimate is based on
PRIOR = 0.6  # prior accuracy, with the weight of one guess
MAX_STRIDE = 16


class StrideScheduler:
    """Chooses the number of guesses that maximises confirmed retrievals per second.

    With a seconds for a guess and its text, b seconds for a verification, and accuracy g, s guesses confirm
    (1 - g^s) / (1 - g) retrievals in s a + b seconds or, if verification runs concurrently with the last guess, in
    (s - 1) a + max(a, b) seconds if all are right. Regenerating the text of a wrong guess takes a seconds more, which
    the paper leaves out. Searching first confirms one retrieval in a + b seconds; if that is best, nothing is guessed.

    The published estimate of g is capped at 0.6 so that early guesses are not over-trusted, which keeps s small even if
    nearly all guesses are right; here 0.6 is only the prior.
    """

    def __init__(self, stride: int | None, *, concurrent: bool) -> None:
        """Start with one guess.

        Args:
            stride: a fixed number of guesses; None to choose it.
            concurrent: whether verification runs concurrently with decoding.
        """
        self._fixed, self._concurrent = stride, concurrent
        self._outcomes: deque[tuple[int, bool]] = deque(maxlen=WINDOW)  # guesses confirmed, and whether one was wrong
        self._guess = self._verification = 0.0  # seconds, exponential means

    @property
    def stride(self) -> int:
        """Number of guesses before the next verification; 0 to search first."""
        if self._fixed is not None:
            return self._fixed
        if not self._outcomes or not self._guess:
            return 1
        return max(range(MAX_STRIDE + 1), key=self._confirmed_per_second)

    @property
    def accuracy(self) -> float:
        """Estimated probability that a guess is right, over the window."""
        right = sum(confirmed for confirmed, _ in self._outcomes)
        wrong = sum(failed for _, failed in self._outcomes)
        return (right + PRIOR) / (right + wrong + 1)

    def observe_guess(self, seconds: float) -> None:
        """Add the time of a guess and its text."""
        self._guess = _mean(self._guess, seconds)

    def observe_verification(self, seconds: float, *, confirmed: int, failed: bool) -> None:
        """Add a verification's time, how many guesses it confirmed, and whether the next one was wrong."""
        self._verification = _mean(self._verification, seconds)
        self._outcomes.append((confirmed, failed))

    def _confirmed_per_second(self, stride: int) -> float:
        guess, verification, accuracy = self._guess, self._verification, self.accuracy
        if not stride:
            return 1 / (guess + verification)
        confirmed = sum(accuracy**place for place in range(stride))
        all_right = accuracy**stride
        in_turn = stride * guess + verification
        together = (stride - 1) * guess + max(guess, verification) if self._concurrent else in_turn
        return confirmed / (all_right * together + (1 - all_right) * (in_turn + guess))


def _mean(known: float, value: float) -> float:
    return value if not known else 0.7 * known + 0.3 * value
