"""What a round's pass and its drafts took: what the latency model learns of it, and what the drafts are charged.

All times are returned in units of the latency model's curve, those of a pass without a draft.
"""

from __future__ import annotations

from collections.abc import Sequence

from speculant.core.tree import DraftTree
from speculant.sizing.latency import LatencyModel
from speculant.sizing.reading import Reading
from speculant.sizing.shared_start import SharedStart
from speculant.sizing.state import SequenceSizing

_BOOKED = 1.5  # maximum ratio of the time charged for a pass to its predicted time, and the reverse, against stalls


class Accounting:
    """Lets the latency model and the record of readings learn from rounds, and divides their time."""

    def __init__(self, latency: LatencyModel, reading: Reading) -> None:
        self._latency, self._reading, self._start = latency, reading, SharedStart()

    def observe_pass(
        self, states: Sequence[SequenceSizing], drafts: Sequence[DraftTree], seconds: float
    ) -> tuple[float, float]:
        """Learn from a pass; return its predicted time, and the time that its drafts are charged.

        The curve forgets the cost of rarely tried sizes, so drafts are charged what their pass took: in a batch only
        their share of the difference, since the noise of a pass over many texts is no cost of a few drafts.
        """
        latency = self._latency
        nodes = sum([len(draft) + len(draft.queries) for draft in drafts])
        rows, level = min(nodes + len(drafts), len(latency.curve)) - 1, latency.level
        asked = sum([state.by_level and state.asked > 0 for state in states])
        if not nodes and asked:
            costs = latency.observe_empty(rows, seconds)
        else:
            latency.observe(rows, seconds)
            costs = float(latency.curve[rows])
        drafted = sum([bool(len(draft) or len(draft.queries)) for draft in drafts]) or asked
        measured = min(max(seconds / level, costs / _BOOKED), _BOOKED * costs)
        return costs, costs + (measured - costs) * drafted / len(states)

    def observe_drafting(
        self, states: Sequence[SequenceSizing], drafts: Sequence[DraftTree], seconds: float
    ) -> tuple[float, list[float]]:
        """Learn from the drafting time; return what drafts are charged, and what reading took for each sequence.

        The model learns the mean of the sequences that asked for drafts: the time of another sequence is not that of
        further nodes. What they share is divided by all sequences; the rest of it counts as time of reading, which says
        nothing about the next draft.
        """
        asking = sum([state.asked > 0 for state in states])
        if not asking:
            return 0.0, [0.0] * len(states)
        drafted = zip(states, drafts, strict=True)
        read = [state.read for state in states]
        shared = 0.0
        if len(states) > 1 and not any(read) and not any(state.by_level for state in states if state.asked):
            shared = self._start.observe(asking, seconds / self._latency.level) * (1 - asking / len(states))
            seconds -= shared * self._latency.level
        units = sum([state.levels if state.by_level else len(draft) for state, draft in drafted])
        even = all(state.by_level or state.sampled or state.plain for state in states)
        # The first draft, or the first after a pause, reads everything committed before, so its time is atypical.
        late = [
            bool(state.asked)
            and (state.idle or not state.rounds or (state.without_levels and state.levels > 0) or state.read > 0)
            for state in states
        ]
        usual = sum(late) < asking
        charged = asking * self._latency.observe_drafting(units / asking, seconds / asking, even=even, usual=usual)
        if not any(read) and not usual:
            read = [int(each) for each in late]  # by texts, where it is not known what was read
        excess, total = asking * self._latency.drafting.excess, sum(read)
        times = [shared / asking * (state.asked > 0) for state in states]
        if not (total and excess > 0):  # it is NaN where it is not known
            return charged, times
        for place, (state, own) in enumerate(zip(states, read, strict=True)):
            self._reading.observe(state.read, excess * own / total)
            times[place] += excess * own / total
        return charged, times
