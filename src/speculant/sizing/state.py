"""What the policies of sizes keep of each sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from speculant.core.engine import MAX_NODES
from speculant.core.tree import UNLIMITED
from speculant.sizing.acceptance import AcceptanceModel
from speculant.sizing.contract import Forecast
from speculant.sizing.pausing import Pausing


@dataclass(slots=True, eq=False)
class SequenceSizing:
    """What a policy keeps of one sequence.

    Attributes:
        acceptance: of this sequence.
        wanted: the largest size of late, slowly falling.
        sampled: whether its last draft was sampled.
        forecast: of the drafting session, see `core.drafter.Session.forecast`; None where nothing is forecast.
        rest: rounds that ask for no draft, this one included; 0 where it asks for one.
        asked, depth, gain: in this round: nodes and levels asked for, and the tokens that the draft should gain.
        by_level: whether drafting is to be paid by the level in this round, else by the node.
        levels: whose time this round's draft took, before it was trimmed.
        level_price, start_price, node_price: what a further level of this round's draft, drafting by levels at all, and
            a further node have to gain.
        pausing: rounds without a draft.
        text: the token before the root, and the root.
        rounds, spent, queried: counts of rounds, nodes, query rows.
        waited: whether the last round asked for no draft.
        resting: whether what drafts by levels had no part in the last draft, though it was asked.
        skipped, paused: counts of rounds without nodes, rounds without asking.
        plain: whether no draft is ever asked for; what such a text does says nothing of drafts.
    """

    acceptance: AcceptanceModel
    wanted: float = MAX_NODES
    sampled: bool = False
    forecast: Forecast | None = None
    rest: int = 0
    asked: int = 0
    depth: int = UNLIMITED
    by_level: bool = False
    levels: float = 0
    gain: float = 0.0
    level_price: float = 0.0
    start_price: float = 0.0
    node_price: float = 0.0
    pausing: Pausing = field(default_factory=Pausing)
    text: list[int] = field(default_factory=lambda: [-1, -1])
    rounds: int = 0
    spent: int = 0
    queried: int = 0
    waited: bool = False
    resting: bool = False
    skipped: int = 0
    paused: int = 0
    plain: bool = False
