"""Replays a drafter's acceptance that was recorded with a trace.

At output position p the drafter would have yielded recorded[p] tokens (accepted drafts + 1) with drafts of unlimited
length; with k drafts a round yields min(recorded[p], k + 1), and the next one starts after them. If the list's run had
a longer or shorter output than the trace, the shorter of the two is used. The cost of drafting is not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.bench.replay.player import ReplayResult
from speculant.bench.replay.traces import Recording

DRAFTS = 20


def list_recorded_names(recordings: Sequence[Recording]) -> list[str]:
    """Return the drafters whose acceptance was recorded, in order of appearance."""
    return list(dict.fromkeys(name for recording in recordings for name in recording.recorded))


def match_recorded_lengths(asked: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths of recorded chains to show: the requested ones, or the recorded length if there are none.

    A record has no information about longer chains than those it was made with.
    """
    return tuple(dict.fromkeys(min(each, DRAFTS) for each in asked)) or (DRAFTS,)


def replay_recorded(name: str, recordings: Sequence[Recording], *, drafts: int = DRAFTS) -> ReplayResult:
    """Return the replay of a drafter's recorded acceptance with `drafts` drafted tokens per round."""
    chosen = [recording for recording in recordings if len(recording.recorded.get(name, ()))]
    request: list[int] = []
    accepted: list[int] = []
    for number, recording in enumerate(chosen):
        yields = recording.recorded[name].tolist()
        end = min(len(yields), len(recording.output))
        at = 0
        while at < end:
            emitted = min(yields[at], drafts + 1, end - at)
            request.append(number)
            accepted.append(emitted - 1)
            at += emitted
    return ReplayResult(
        categories=tuple(recording.category for recording in chosen),
        prompt_tokens=np.array([len(recording.prompt) for recording in chosen], np.int64),
        request=np.array(request, np.int64),
        accepted=np.array(accepted, np.int64),
    )
