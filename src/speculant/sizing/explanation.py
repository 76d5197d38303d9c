"""A sentence that explains to users the sizes of a text's drafts."""

from __future__ import annotations

import numpy as np

from speculant.sizing.latency import LatencyModel
from speculant.sizing.state import SequenceSizing


def explain_sizes(state: SequenceSizing, latency: LatencyModel, *, learns: bool) -> str:
    """Return a sentence about the drafts of a sequence so far; empty before its first round.

    Args:
        state: the sequence's state.
        latency: what passes take.
        learns: whether the drafter learns from rejected nodes, so that some are drafted for their sake.
    """
    if not state.rounds:
        return ""
    mean, queries = state.spent / state.rounds, state.queried / state.rounds
    usual = max(1, min(round(mean + queries) or 1, len(latency.curve) - 1))
    one, some = latency.seconds(np.array([0, usual]))
    extra = f" and {queries:.1f} query rows" if queries else ""
    text = (
        f"{mean:.1f} nodes per round{extra}, none in {state.skipped / state.rounds:.0%} of rounds: a pass over "
        f"{usual} takes {some / one:.2f} times as long as one over none ({one * 1e3:.1f} ms)"
    )
    if state.paused:
        text += f"; in {state.paused / state.rounds:.0%} of rounds drafting would have cost more than it gains"
    if learns and state.text[1] >= 0:
        text += "; some nodes are spent because the drafter learns from rejected ones too"
    return text + "."
