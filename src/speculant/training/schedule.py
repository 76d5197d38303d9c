"""The learning rate over a training."""

from __future__ import annotations

import math

from speculant.core.errors import UsageError

SCHEDULES = ("linear", "cosine", "constant")


def rate_factor(schedule: str, *, step: int, warmup: int, progress: float) -> float:
    """Return the factor of the learning rate.

    Args:
        schedule: "linear" or "cosine" decay to 0, or "constant".
        step: optimizer step, from 0.
        warmup: number of steps over which the rate rises.
        progress: share of the training that is done, 0 to 1.

    Raises:
        UsageError: there is no such schedule.
    """
    if schedule not in SCHEDULES:
        raise UsageError(f"there is no schedule {schedule!r}; there are {', '.join(SCHEDULES)}.")
    rising = min(1.0, (step + 1) / max(1, warmup))
    left = 1 - min(1.0, max(0.0, progress))
    return rising * {"linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2, "constant": 1.0}[schedule]
