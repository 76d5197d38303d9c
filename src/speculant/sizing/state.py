"""The state that sizing policies keep for each sequence."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from speculant.core.drafter import Budget
from speculant.core.engine import MAX_NODES
from speculant.core.tree import UNLIMITED
from speculant.sizing.acceptance import AcceptanceModel
from speculant.sizing.contract import SizedSession
from speculant.sizing.pausing import Pausing


@dataclass(slots=True, eq=False)
class SequenceSizing:
    """A policy's state of one sequence.

    Attributes:
        acceptance: acceptance model of this sequence.
        room: maximum number of tokens that its text may gain.
        wanted: largest recent draft size, slowly decaying.
        sampled: whether its last draft was sampled.
        session: its session; None if nothing is to be asked of it.
        rest: number of rounds without a draft that remain, including this one; 0 if this round asks for one.
        backlog, read: number of tokens that the drafter must read before this round's draft, and that it has read, if
            those are more than the tokens of a round.
        length: number of tokens of its text so far.
        lengths: lengths of recent texts, to which its own is added at its end.
        wait: number of rounds that remain in which no draft is asked for that must read first.
        asked, depth, gain: nodes and levels asked for in this round, and the draft's expected gain in tokens.
        by_level: whether drafting time counts per level in this round; otherwise per node.
        levels: drafting time of this round's draft in levels, before it was trimmed.
        level_price, start_price, node_price: minimum gain in tokens of one more level of this round's draft, of
            drafting by levels at all, and of one more node.
        pausing: pauses of drafting.
        uncounted: number of rounds of its pause that are not counted in its other attributes yet.
        text: the token before the root, and the root.
        rounds, spent, queried: counts of rounds, nodes and query rows.
        idle: whether the last round asked for no draft.
        without_levels: whether the last draft took no time for levels, although its drafter drafts by levels.
        roomless: number of consecutive drafts without nodes and levels, as where there is no room.
        skipped, paused: counts of rounds without nodes, and of rounds that asked for no draft.
        plain: whether no draft is ever asked for; nothing about drafts is learned from such a text.
    """

    acceptance: AcceptanceModel
    room: int = UNLIMITED
    wanted: float = MAX_NODES
    sampled: bool = False
    session: SizedSession | None = None
    rest: int = 0
    backlog: int = 0
    read: int = 0
    length: int = 0
    lengths: deque[int] = field(default_factory=deque)
    wait: int = 0
    asked: int = 0
    depth: int = UNLIMITED
    by_level: bool = False
    levels: float = 0
    gain: float = 0.0
    level_price: float = 0.0
    start_price: float = 0.0
    node_price: float = 0.0
    pausing: Pausing = field(default_factory=Pausing)
    uncounted: int = 0
    text: list[int] = field(default_factory=lambda: [-1, -1])
    rounds: int = 0
    spent: int = 0
    queried: int = 0
    idle: bool = False
    without_levels: bool = False
    roomless: int = 0
    skipped: int = 0
    paused: int = 0
    plain: bool = False

    def make_budget(self, *, nodes: int, depth: int, trees: bool, queries: int, branches: int) -> Budget:
        return Budget(
            nodes=nodes,
            depth=min(depth, self.depth),
            trees=trees,
            queries=queries,
            branches=branches,
            level_price=self.level_price,
            start_price=self.start_price,
            node_price=self.node_price,
        )

    def settle(self) -> None:
        """Count the uncounted rounds of a pause, each of which committed a token."""
        rounds, self.uncounted = self.uncounted, 0
        if rounds:
            self.rounds += rounds
            self.skipped += rounds
            self.paused += rounds
            self.length += rounds
            self.idle = True
            self.pausing.count(rounds)

    def close(self) -> None:
        """Note the length of its text, which has ended, if drafts were possible in it."""
        self.settle()
        if self.length and not self.plain:
            self.lengths.append(self.length)
