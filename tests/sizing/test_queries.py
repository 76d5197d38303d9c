"""Query rows in sizing: paid for, never dropped, and paused where they cost more than they gain."""

from __future__ import annotations

import numpy as np
import pytest

from models import tiny_model
from speculant import Speculator
from speculant.core.tree import DraftTree
from speculant.sizing.exploration import ExplorationBonus
from speculant.sizing.fixed import FixedSizing
from speculant.sizing.step_cost import StepCost
from trees import chain
from walks import adaptive, asking, curve, observe

ROWS = 20
CLIFF = StepCost(np.array([0.0, 23, 24, 64]), np.array([1.0, 1.0, 9.0, 9.0]))  # 23 rows are free, one more is not


@pytest.mark.parametrize("per_node", [0.0001, 1.0])
def test_they_are_never_dropped(per_node: float) -> None:
    """Whatever nodes are kept, the queries of every draft are."""
    sizing, drafts = adaptive(curve(per_node)), [asking(chain(0.9, 0.8, 0.1), ROWS), asking(DraftTree.empty(), 3)]
    for policy in (sizing, FixedSizing(1)):
        kept = policy.trim([policy.open(), policy.open()], drafts)
        assert [draft.queries for draft in kept] == [draft.queries for draft in drafts]
    assert len(kept[0]) == 1


def test_nodes_pay_for_the_rows_that_come_on_top() -> None:
    """Guards the base of the curve: with 20 query rows 3 nodes are left that cost nothing, for two drafts 2."""
    sizing, draft = adaptive(CLIFF), chain(*0.9 ** np.arange(1, 30))
    assert len(sizing.trim([sizing.open()], [draft])[0]) > 20
    assert len(sizing.trim([sizing.open()], [asking(draft, ROWS)])[0]) == 3
    both = sizing.trim([sizing.open(), sizing.open()], [asking(draft, ROWS), draft])
    assert sum(map(len, both)) == 2


def test_a_pass_is_observed_with_all_its_rows() -> None:
    """Guards the latency curve, which would take the time of queries for that of few nodes."""
    sizing = adaptive(None)
    state = sizing.open()
    for _ in range(20):
        for draft, seconds in ((chain(0.5), 1.0), (asking(chain(0.5), ROWS), 3.0)):
            observe(sizing, [state], [draft], [0], target=seconds)
    costs = sizing._latency.curve
    assert costs[1 + ROWS] > 2 * costs[1]
    assert state.queried == 20 * ROWS
    assert state.spent == 40
    assert "1.0 nodes per round and 10.0 query rows" in sizing.reason(state)


@pytest.mark.parametrize(
    ("per_node", "explores", "paused"), [(0.2, True, True), (0.0001, True, False), (0.01, False, True)]
)
def test_they_pause_where_they_cost_more_than_they_teach(per_node: float, explores: bool, paused: bool) -> None:
    """Guards the fall back to plain decoding: expensive rows run once in a while, cheap ones in most rounds."""
    sizing = adaptive(curve(per_node), exploration=ExplorationBonus() if explores else None)
    state, asked = sizing.open(), 0
    for _ in range(90):
        [nodes] = sizing.nodes([state])
        draft = asking(DraftTree.empty(), ROWS) if nodes else DraftTree.empty()
        [draft] = sizing.trim([state], [draft])
        asked += bool(nodes)
        observe(sizing, [state], [draft], [0], target=1 + per_node * len(draft.queries), draft=1e-6)
    assert (asked < 20) if paused else (asked >= 85)


def test_gains_of_nodes_pay_for_them() -> None:
    """Drafts that are accepted keep expensive queries going; what a draft gains is set against their cost."""
    sizing = adaptive(curve(0.02))
    state, asked = sizing.open(), 0
    for _ in range(90):
        [nodes] = sizing.nodes([state])
        draft = asking(chain(0.95, 0.9, 0.85), ROWS)
        [draft] = sizing.trim([state], [draft if nodes else DraftTree.empty()])
        asked += bool(nodes)
        observe(sizing, [state], [draft], [len(draft)], target=1 + 0.02 * (len(draft) + len(draft.queries)), draft=1e-6)
    assert asked > 80


def test_curves_have_room_for_them() -> None:
    """Guards large windows and batches: as many rows are left for nodes as without a window."""
    model = tiny_model("llama")
    for size in (1, 8):
        largest = [
            int(Speculator.from_transformers(model, method=method)._sizes.of(size)._latency.sizes[-1])  # type: ignore[attr-defined]
            for method in ("recycling", "lookahead")
        ]
        assert largest[1] == largest[0] + size * 27
