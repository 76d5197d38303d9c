"""Adaptive sizing policy: each round drafts as many nodes as pay off, for one sequence or many, or none if none do.

The gain of a node is the probability that it is accepted. More rows make the pass slower, and time is priced at the
tokens that it would yield elsewhere. With v_i the value of node i, c(n) the seconds of a round with n nodes and r the
recent throughput in tokens per second, the best size is the n that maximises

    1 + v_1 + ... + v_n - r c(n)

This is Dinkelbach's method (1967) of maximising a ratio, here tokens over time, taken over all rounds rather than per
round (as in Sequoia, Chen et al. 2024, arXiv 2402.12374, and TurboSpec, Liu et al. 2024, arXiv 2406.14066). v_i is the
drafter's estimate, corrected by the recent acceptance in this request (`acceptance`), plus a bonus if the drafter
learns from rejected nodes (`exploration`). c is measured in every round (`latency`); a curve stored by `speculant tune`
merely saves the first rounds from trying sizes.

Several sequences share one pass, so its nodes go where they gain most: a repetitive request gets many, one about which
nothing is known gets none.

Drafting takes time per node, too. Not drafting at all pays off only if recent drafts gained less than the time they
took; the sequence then pauses drafting for some rounds. Query rows (`tree.Queries`) cost as much as other rows of the
pass but are never dropped one by one: their cost is the extra time of the pass, their gain the exploration bonus, and
they pause together with drafts.

Sampled nodes must not be dropped because of their values, which would bias the output. Their number is set before they
are drawn, from the acceptance rate at each depth in earlier rounds; the same goes for nodes that are slow to draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.core.drafter import SessionRequest
from speculant.core.engine import MAX_NODES
from speculant.core.tree import UNLIMITED, DraftTree, Float64, Queries
from speculant.core.verifier import Walk
from speculant.sizing.acceptance import AcceptanceModel
from speculant.sizing.accounting import Accounting
from speculant.sizing.contract import SizedSession
from speculant.sizing.division import best_size, cut_drafts, divide_nodes, gains_of, least_cost, limit_growth
from speculant.sizing.explanation import explain_sizes
from speculant.sizing.exploration import ExplorationBonus
from speculant.sizing.history import PausingHistory
from speculant.sizing.latency import LatencyModel
from speculant.sizing.pausing import Pausing
from speculant.sizing.reading import SOME
from speculant.sizing.state import SequenceSizing
from speculant.sizing.throughput import Throughput

_MIN_ASKED = 4  # nodes: minimum to ask for, since a search that finds fewer takes as long
_TELLING, _LONG = 7, 0.5  # nodes that tell what drafts gain, where drafting takes longer than this, in plain passes
_FAIR = 4  # equal shares of a pass's room: maximum nodes to ask for, since searching for more takes time in vain
_EXPENSIVE = 0.01  # drafting time per node, in plain passes, above which nodes should not be drafted to be dropped
_UNWATCHED = 4  # passes in a pause are not timed, except in its last rounds, so that their time is known again
_TOGETHER = 16  # maximum rounds of a pause that are counted together
_ROOMLESS = 16  # rounds, this one included: maximum pause after drafts for which there was no room, as in short texts
_BEGIN = 8.0  # largest recent size that a request begins with: estimates at its beginning are the least reliable
_SHRINK = 0.8  # decay of the largest recent size, per round


class AdaptiveSizing:
    """A sizing policy that drafts as many nodes as pay off."""

    def __init__(
        self,
        latency: LatencyModel,
        acceptance: AcceptanceModel,
        throughput: Throughput,
        exploration: ExplorationBonus | None = None,
        history: PausingHistory | None = None,
        *,
        maximum: int = MAX_NODES,
        depth: int = UNLIMITED,
    ) -> None:
        """Create the policy of a stream or a batch.

        Args:
            latency: latency model of this model's passes, shared by all requests.
            acceptance: acceptance model of the requests so far; each sequence starts with a copy and updates both.
            throughput: throughput of the requests so far; the policy starts with a copy and updates both.
            exploration: exploration bonus shared by all requests, for drafters that learn from rejected nodes; else
                None.
            history: pauses of the requests so far, which is updated; None for a new one.
            maximum: maximum nodes per draft.
            depth: maximum depth of a draft.
        """
        self._latency, self._acceptance, self._exploration, self._maximum = latency, acceptance, exploration, maximum
        self._depth = depth
        self._shared, self._throughput = throughput, Throughput(throughput)
        self._history = PausingHistory() if history is None else history
        self._reading = self._history.reading
        self._accounting = Accounting(latency, self._reading)
        self._counts = np.arange(len(latency.curve) + 1)
        self._running = 1  # sequences of the last round
        self._checking = False  # whether this round measures plain decoding

    def open(
        self,
        session: SizedSession | None = None,
        *,
        room: int = UNLIMITED,
        plain: bool = False,
        start: SessionRequest | None = None,
    ) -> SequenceSizing:
        maximum = min(self._maximum, int(self._latency.sizes[-1]))
        pausing = Pausing() if plain else self._history.of(start).begin(self._running)
        return SequenceSizing(
            AcceptanceModel(self._acceptance),
            room,
            wanted=min(_BEGIN, float(maximum)),
            session=session,
            pausing=pausing,
            lengths=self._reading.lengths,
            plain=plain,
        )

    def nodes(self, states: Sequence[SequenceSizing]) -> list[int]:
        if not states:
            return []
        self._running = len(states)
        room, drafts = max(0, self._latency.maximum - (len(states) - 1)), False
        maximum, fair = min(self._maximum, room), _FAIR * room // len(states)
        if self._history.checks.is_due(len(states)):
            self._checking = True
            for state in states:
                if not state.plain:
                    state.pausing.left = max(1, state.pausing.left)
        plain = len(states) / float(self._latency.curve[len(states) - 1])
        for state in states:
            state.gain, state.asked = 0.0, 0
            if state.pausing.left > _UNWATCHED:  # most texts of a batch in which drafts do not pay
                state.rest = int(state.pausing.left)
                continue
            state.depth, state.backlog = self._depth, 0
            # A text that waits for its reading does not rest: what it is to read must not be dropped.
            waits = not (state.plain or state.pausing.left) and self._reading.waits(state, plain if maximum else 0.0)
            state.rest = 0 if state.plain else int(state.pausing.left) or int(waits)
            drafts |= not (state.plain or state.rest)
        if not drafts:
            return [0] * len(states)
        level_price, node_price = self._marginal_prices(len(states), maximum)
        start_price = self._price(len(states)) * self._latency.drafting.level_start
        for state in states:
            if state.plain or state.rest:
                continue
            state.level_price, state.node_price = level_price, node_price
            state.start_price = start_price + self._reading.price_per_round(state, plain)
            gains = state.session.forecast(maximum) if state.session is not None and maximum else None
            state.by_level = gains is not None
            if gains is not None:
                state.asked, depth = self._forecast_size(state, gains, maximum, len(states))
                state.depth = min(depth, self._depth)
            elif state.sampled or self._latency.drafting.per_node > _EXPENSIVE:
                state.asked = self._chain_length(state, maximum, len(states))
            else:
                allowed = limit_growth(self._latency.curve, len(states) - 1, state.wanted)
                state.asked = min(maximum, max(_MIN_ASKED, min(fair, allowed)))
        return [state.asked for state in states]

    def _marginal_prices(self, sequences: int, maximum: int) -> tuple[float, float]:
        """Return the minimum gains in tokens of one more level and of one more node, the latter at its lowest cost."""
        if not maximum:
            return 0.0, 0.0
        price, few = self._price(sequences), min(_MIN_ASKED, maximum)  # fewer cost too little to be measured
        node = price * least_cost(self._latency.curve, sequences - 1, few, maximum)
        return price * self._latency.drafting.per_level + node, node

    def _chain_length(self, state: SequenceSizing, maximum: int, sequences: int) -> int:
        """Return the length of a chain that pays off, decided before it is drafted; set its gain."""
        values = state.acceptance.by_depth(maximum)
        if not maximum:
            return 0
        price, pass_costs = self._price(sequences), self._pass_costs(sequences - 1, maximum)[1:]
        gains = np.cumsum(values) - price * pass_costs
        best = int(np.argmax(gains - price * self._latency.drafting.per_node * self._counts[1 : maximum + 1]))
        state.gain = max(0.0, float(gains[best]))  # not net of drafting time, with which `_plan` compares it
        return best + 1 if state.gain > 0 else 1  # at least one node, or nothing more would be learned

    def _forecast_size(self, state: SequenceSizing, gains: Float64, maximum: int, sequences: int) -> tuple[int, int]:
        """Return the numbers of nodes and levels that pay off; set their gain.

        Args:
            state: the sequence.
            gains: the session's forecast for up to `maximum` nodes.
            maximum: maximum nodes of the draft.
            sequences: number of sequences in the pass.
        """
        if not gains.size:
            return min(maximum, max(_MIN_ASKED, int(2 * state.wanted))), UNLIMITED
        price, levels = self._price(sequences), np.arange(1, len(gains) + 1)
        if gains.ndim == 1:  # any number of nodes, which are trimmed later
            return maximum, int(np.argmax(gains - price * self._latency.drafting.per_level * levels)) + 1
        gains = gains - price * self._pass_costs(sequences - 1, gains.shape[1])[1:]
        best = int(np.argmax(gains - price * self._latency.drafting.per_level * levels[:, None]))
        state.gain = max(0.0, float(gains.flat[best]))  # not net of drafting time, with which `_plan` compares it
        if not state.gain:
            best = 0  # the smallest draft, or nothing more would be learned
        level, node = divmod(best, gains.shape[1])
        return node + 1, level + 1

    def trim(self, states: Sequence[SequenceSizing], drafts: Sequence[DraftTree]) -> list[DraftTree]:
        for state, draft in zip(states, drafts, strict=True):
            state.read = state.levels = 0
            if not state.asked:
                continue
            if state.backlog >= SOME and state.session is not None and (len(draft) or draft.levels):
                state.read = max(0, state.backlog - state.session.unread())
            if not state.by_level:
                continue
            state.levels = _levels_of(draft)
            if len(draft) or state.levels:
                state.roomless = 0
            else:  # no node and no level, as where there is no room: its time and gain are not representative
                state.roomless += 1
                state.asked, state.pausing.left = 0, min(state.roomless, _ROOMLESS)
        # In a large batch few texts may have a draft, so no more is done for the others than to find them.
        places = [place for place, draft in enumerate(drafts) if len(draft) or len(draft.queries)]
        if not places:
            return list(drafts)
        for state, draft in zip(states, drafts, strict=True):
            state.gain = 0.0 if draft.proposal is None else state.gain
        own, drafted = [states[place] for place in places], [drafts[place] for place in places]
        gains = [gains_of(state, draft, self._exploration) for state, draft in zip(own, drafted, strict=True)]
        held = sum([len(draft) for draft in drafted if draft.proposal is not None])
        queried = sum([len(draft.queries) for draft in drafted])
        base, price, latency = len(drafts) - 1 + held + queried, self._price(len(drafts)), self._latency
        values = gains[0] if len(gains) == 1 else -np.sort(-np.concatenate(gains))
        # If drafting takes time per level, that time does not depend on the number of nodes.
        drafting = 0.0 if all(state.by_level or state.plain for state in states) else latency.drafting.per_node
        nodes, worth = best_size(values, latency.curve, base, latency.maximum - base, price, drafting)
        kept = divide_nodes(gains, nodes)
        for state, draft, gain, n in zip(own, drafted, gains, kept, strict=True):
            if draft.proposal is None:
                state.gain = max(0.0, float(gain[:n].sum()) - worth * n / max(nodes, 1))
            if queried:
                cost = price * self._query_cost(base, queried) * len(draft.queries) / queried
                state.gain += self._learning(state, draft.queries) - cost
        found = list(drafts)
        for place, draft in zip(places, cut_drafts(drafted, kept), strict=True):
            found[place] = draft
        return found

    def _learning(self, state: SequenceSizing, queries: Queries) -> float:
        """Return the gain of query rows, which is that of rejected nodes."""
        return 0.0 if self._exploration is None else float(self._exploration.bonus(queries, state.text[1]).sum())

    def _query_cost(self, base: int, queried: int) -> float:
        """Return the extra cost of a pass over `base` draft rows due to the `queried` query rows among them."""
        curve, last = self._latency.curve, len(self._latency.curve) - 1
        return float(curve[min(base, last)] - curve[min(base - queried, last)])

    def _price(self, sequences: int) -> float:
        """Return the price of a unit of time, in tokens."""
        return self._throughput.rate(sequences / float(self._latency.curve[sequences - 1]))

    def _pass_costs(self, base: int, nodes: int) -> Float64:
        """Return Float64[nodes + 1], the extra cost of adding 0, 1, ... nodes to a pass over `base` draft rows."""
        curve, end = self._latency.curve, base + nodes + 1
        rows = curve[base:end]
        if len(rows) <= nodes:  # beyond the curve passes cost as much as at its end
            rows = np.append(rows, np.full(nodes + 1 - len(rows), curve[-1]))
        return np.asarray(rows - rows[0], np.float64)

    def observe(
        self,
        states: Sequence[SequenceSizing],
        drafts: Sequence[DraftTree],
        walks: Sequence[Walk],
        *,
        target_seconds: float,
        draft_seconds: float,
    ) -> None:
        checking, self._checking = self._checking, False
        if all(state.pausing.left > _UNWATCHED for state in states):
            for state, walk in zip(states, walks, strict=True):
                self._count_pause(state, walk)
            return
        costs, took = self._accounting.observe_pass(states, drafts, target_seconds)
        if all(state.plain for state in states):
            return
        plain, asking = float(self._latency.curve[len(drafts) - 1]), sum([state.asked > 0 for state in states])
        nodes = sum([len(draft) + len(draft.queries) for draft in drafts])
        drafting, readings = self._accounting.observe_drafting(states, drafts, draft_seconds)
        tokens = sum([len(walk.tokens) for walk in walks])
        time = (took + drafting) * len(states) / plain
        drafted = nodes > 0 or any(state.by_level and state.asked for state in states)
        self._history.checks.observe(len(states), drafted=drafted, tokens=tokens, time=time)
        for throughput in (self._throughput, self._shared):
            throughput.observe(tokens, costs + drafting)
        for state, draft, walk, reading in zip(states, drafts, walks, readings, strict=True):
            if state.rest > 1:
                self._count_pause(state, walk)
                continue
            if len(draft):
                state.acceptance.observe(draft, walk.path)
                self._acceptance.observe(draft, walk.path)
            text = [*state.text, *walk.tokens]
            if self._exploration is not None:
                self._exploration.observe(draft, text)
            state.text = text[-2:]
            state.sampled = draft.proposal is not None if len(draft) else state.sampled
            state.rounds += 1
            state.spent += len(draft)
            state.queried += len(draft.queries)
            state.skipped += not len(draft)
            state.paused += not (state.asked or checking)
            if not state.plain:
                share = (len(draft) + len(draft.queries)) / nodes if nodes else 1 / max(1, asking)
                spent = share * (took - plain) + drafting / max(1, asking)
                profit = len(walk.path) - spent * len(drafts) / plain
                self._plan(state, len(draft), len(states), profit, reading * len(drafts) / plain, len(walk.tokens))
            self._reading.count(state, len(walk.tokens))
            state.idle, state.without_levels = not state.asked, state.by_level and not state.levels

    def _count_pause(self, state: SequenceSizing, walk: Walk) -> None:
        """Count a round of a pause that continues."""
        state.uncounted += 1
        state.pausing.left -= 1
        if state.uncounted == _TOGETHER or state.pausing.left <= _UNWATCHED:
            state.settle()
            state.text = [state.text[-1], walk.tokens[-1]]

    def _plan(
        self, state: SequenceSizing, nodes: int, sequences: int, profit: float, reading: float, tokens: int
    ) -> None:
        """Decide how much to ask for next, and whether to ask at all; `Pausing.observe` describes the last three."""
        if state.pausing.left:
            state.pausing.skip()
        elif state.asked:
            state.wanted = max(float(nodes), _SHRINK * state.wanted)
            maximum = self._latency.maximum
            # While larger drafts have not been tried, it is not known what drafts can gain. To find out costs little,
            # unless drafts take long, of which those of a few nodes tell enough.
            growing = nodes == state.asked == maximum < self._latency.sizes[-1]
            if growing and (maximum < _TELLING or self._latency.drafting.usual < _LONG):
                return
            # In a pause, decoding is plain: drafting time is worth what plain decoding would yield in it.
            plain = sequences / float(self._latency.curve[sequences - 1])
            took = plain * self._latency.drafting.usual
            state.pausing.observe(state.gain, took, plain, profit, reading, tokens=tokens, resumed=state.idle)

    def reason(self, state: SequenceSizing) -> str:
        state.settle()
        return explain_sizes(state, self._latency, learns=self._exploration is not None)


def _levels_of(draft: DraftTree) -> float:
    """Return the drafting time of a draft in levels."""
    return int(draft.depths().max(initial=0)) if draft.levels is None else draft.levels


def warm_up() -> None:
    """Compile the functions that choose sizes, so that no request waits for it."""
    bonus, node = ExplorationBonus(), DraftTree.from_paths([[0]])
    bonus.bonus(node, 0)  # only rounds with queries call it alone
    sizing = AdaptiveSizing(LatencyModel(maximum=1), AcceptanceModel(), Throughput(), bonus)
    state = sizing.open()
    for _ in range(3):  # the number of rounds until a first node is allowed
        sizing.nodes([state])
        sizing.trim([state], [node])
        sizing.observe([state], [node], [Walk([0], [0, 0], False)], target_seconds=1.0, draft_seconds=0.0)
