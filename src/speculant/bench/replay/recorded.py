"""Acceptance that was recorded when a trace was made, played as if its drafter were here.

At output position p the drafter would have yielded recorded[p] tokens (accepted drafts + 1) had it drafted without
end; with k drafts a round yields min(recorded[p], k + 1), and the next one begins behind them. The list may come from
a run whose output was longer or shorter than the trace's; it is played to the shorter of the two. What drafting cost
is not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.bench.replay.player import Played
from speculant.bench.replay.traces import Recording

DRAFTS = 20


def recorded_names(recordings: Sequence[Recording]) -> list[str]:
    """Return the drafters that some recording tells of, in order of appearance."""
    return list(dict.fromkeys(name for recording in recordings for name in recording.recorded))


def play_recorded(name: str, recordings: Sequence[Recording], *, drafts: int = DRAFTS) -> Played:
    """Play what was recorded of a drafter, `drafts` tokens a round, on the recordings that tell of it."""
    told = [recording for recording in recordings if len(recording.recorded.get(name, ()))]
    request: list[int] = []
    accepted: list[int] = []
    for number, recording in enumerate(told):
        yields = recording.recorded[name].tolist()
        end = min(len(yields), len(recording.output))
        at = 0
        while at < end:
            emitted = min(yields[at], drafts + 1, end - at)
            request.append(number)
            accepted.append(emitted - 1)
            at += emitted
    return Played(
        categories=tuple(recording.category for recording in told),
        prompt_tokens=np.array([len(recording.prompt) for recording in told], np.int64),
        request=np.array(request, np.int64),
        accepted=np.array(accepted, np.int64),
    )
