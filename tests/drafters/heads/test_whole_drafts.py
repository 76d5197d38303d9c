"""Drafts that grow whole without code of their own: they are those that grow level by level."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from eagles import eagle_head, p_eagle_head
from feed_forward_heads import HIDDEN, heads, new_medusa, tiny_target
from models import VOCABULARY
from pairwise import paired
from speculant.core.drafter import EMPTY_PATH, Budget, SessionRequest, Verified
from speculant.core.sampler import Sampling
from speculant.core.tree import ROOT, DraftTree
from speculant.drafters.copying.context import heaviest_first
from speculant.drafters.heads import calibration, whole_drafts
from speculant.drafters.heads import session as session_module
from speculant.drafters.heads import text as text_module
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.heads.feature_state import FeatureState
from speculant.drafters.heads.levels import LevelState
from speculant.drafters.heads.medusa.head import MedusaHead
from speculant.drafters.heads.session import HeadSession
from speculant.drafters.heads.text import HeadText, grow_whole
from speculant.drafters.models.shapes import GrowthPlan
from speculant.engines.hf.views.target_parts import HFTargetParts

BUDGETS = (
    Budget(nodes=5, depth=8),
    Budget(nodes=12, depth=2),
    Budget(nodes=40, depth=8, trees=False),
    Budget(nodes=9, depth=8, node_price=0.02),
    Budget(nodes=20, depth=8, level_price=0.05, node_price=1e-4),
    Budget(nodes=20, depth=8, level_price=1.5),
)


def make_heads() -> dict[str, tuple[Any, int]]:
    """Return heads without code for whole drafts and how many layers they read, by name."""
    ids = torch.arange(0, VOCABULARY, 2)
    return {
        **{name: (head, 1) for name, head in heads().items()},
        "medusa-ids": (new_medusa(vocabulary=len(ids), ids=ids), 1),
        "medusa-padded": (new_medusa(vocabulary=VOCABULARY + 7), 1),
        "eagle": (eagle_head(), 1),
        "p-eagle": (p_eagle_head(), 3),
    }


NAMES = tuple(make_heads())


def opened(
    name: str, *, temperature: float = 0.0, settings: HeadSettings | None = None, seeds: tuple[int, ...] = (0,)
) -> tuple[HeadDrafter, list[HeadSession]]:
    """Return a drafter, and sessions whose prompts of different lengths have been read."""
    head, taps = make_heads()[name]
    drafter = HeadDrafter(LoadedHead(head, tiny_target(), kind=name, method=name), settings=settings)
    sessions = list[HeadSession]()
    for seed in seeds:
        prompt = np.arange(4 + seed, dtype=np.int32)
        session = drafter.open(SessionRequest(prompt=prompt, sampling=Sampling(temperature=temperature)))
        assert isinstance(session, HeadSession)
        sessions.append(session)
        commit(session, taps, len(prompt), seed)
    return drafter, sessions


def commit(session: HeadSession, taps: int, count: int, seed: int) -> None:
    """Let a session observe `count` more states and a token."""
    hidden = torch.randn(count, taps, HIDDEN, generator=torch.Generator().manual_seed(seed))
    tokens = np.array([3 + seed], np.int32)
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens, hidden=hidden))


def leave_to_levels(texts: Any, plans: Any, temperatures: Any) -> list[None]:
    """Grow no draft whole."""
    return [None for _ in zip(texts, plans, temperatures, strict=True)]


def are_same(one: DraftTree, other: DraftTree) -> bool:
    """Return whether two drafts are the same, with weights that may be rounded differently."""
    same = one.tokens.tolist() == other.tokens.tolist() and one.parents.tolist() == other.parents.tolist()
    return same and np.allclose(one.weights, other.weights, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "temperature", "settings"),
    paired(
        NAMES,
        [0.0, 0.7],
        [HeadSettings(tree="chain", depth=5), HeadSettings(depth=4, top_k=3), HeadSettings(min_probability=0.01)],
    ),
)
def test_drafts_are_those_that_grow_level_by_level(
    monkeypatch: pytest.MonkeyPatch, name: str, temperature: float, settings: HeadSettings
) -> None:
    """Guards tokens, parents, weights and the levels a price allows, in rounds of several budgets."""
    for limit in ("_TOP_K", "_EXTENDED"):  # levels are as wide as without a price of rows
        monkeypatch.setattr(session_module, limit, 64)
    monkeypatch.setattr(text_module, "measure_row_share", lambda _: 1e-9)
    whole, drafts = session_module.grow_whole, dict[bool, list[DraftTree]]()
    extended = dict[bool, list[list[float]]]()
    for by_level in (False, True):
        monkeypatch.setattr(session_module, "grow_whole", leave_to_levels if by_level else whole)
        _, [session] = opened(name, temperature=temperature, settings=settings)
        drafts[by_level], extended[by_level] = [], []
        for round_, budget in enumerate(BUDGETS):
            draft = session.propose(budget)
            assert are_same(draft, session.propose(budget))  # asking again changes nothing
            drafts[by_level].append(draft)
            extended[by_level].append([*session._shape.extended])
            commit(session, make_heads()[name][1], 1, 10 + round_)
    for one, other in zip(drafts[False], drafts[True], strict=True):
        assert are_same(one, other)
    for own, wanted in zip(extended[False], extended[True], strict=True):  # levels also select after the last one
        np.testing.assert_allclose(own, wanted[: len(own)], rtol=1e-4)
    assert max(map(len, drafts[False])) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_texts_together_have_their_own_drafts(name: str) -> None:
    """Guards batches whose texts have different budgets, ends and temperatures."""
    budgets = [Budget(nodes=9, depth=3), Budget(nodes=2, depth=1), Budget(nodes=6, depth=2, trees=False)]
    drafter, sessions = opened(name, seeds=(0, 1, 2))
    sessions[2]._temperature = 0.5
    together = drafter.propose(sessions, budgets)
    for session, budget, draft in zip(sessions, budgets, together, strict=True):
        assert are_same(session.propose(budget), draft)


@pytest.mark.parametrize("name", ["medusa", "hydra"])
def test_logits_that_are_no_numbers_are_left_to_the_levels(name: str) -> None:
    """Guards texts beside a broken one: theirs are whole, its draft is uniform."""
    drafter, sessions = opened(name, seeds=(0, 1))
    bad = sessions[1].text._hidden[0]
    bad.fill_(torch.nan)
    drafts = drafter.propose(sessions, [Budget(nodes=4, depth=3)] * 2)
    _, [alone] = opened(name)
    assert are_same(drafts[0], alone.propose(Budget(nodes=4, depth=3)))
    assert len(drafts[1])
    np.testing.assert_allclose(drafts[1].weights[0], 1 / VOCABULARY, rtol=1e-4)


@pytest.mark.parametrize("price", [0.0, 0.3])
def test_levels_with_projections_of_their_own_are_read_when_reached(
    monkeypatch: pytest.MonkeyPatch, price: float
) -> None:
    """Guards the time of Medusa heads as published: no depth beyond the draft is projected."""
    calls = list[int]()
    project = MedusaHead.project
    monkeypatch.setattr(MedusaHead, "project", lambda self, *own: (calls.append(own[1]), project(self, *own))[1])
    _, [session] = opened("medusa", settings=HeadSettings(min_probability=0.4 if price else 0))
    calls.clear()
    draft = session.propose(Budget(nodes=9, depth=3))
    assert calls == [*range(1 if price else 3)]
    assert draft.depths().max() <= len(calls)


def test_rows_of_parallel_heads_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards widths under a price of levels: unlimited where nodes need no rows, but not where a row costs 0."""
    monkeypatch.setattr(text_module, "measure_row_share", lambda _: 0.0)
    widths = {}
    for name in ("blockwise", "p-eagle", "hydra", "eagle"):
        _, [session] = opened(name)
        draft = session.propose(Budget(nodes=30, depth=3, level_price=1e-9))
        widths[name] = int((draft.parents == ROOT).sum())
    assert min(widths["blockwise"], widths["p-eagle"]) > 3 >= max(widths["hydra"], widths["eagle"])


def test_a_share_that_cannot_be_measured_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the price of rows after a text with NaN logits, and after one with room for a single level."""
    drafter, [session] = opened("hydra")
    session.text._hidden[0].fill_(torch.nan)
    assert session.text.row_share == 0
    assert drafter.states.row_share is None
    _, [session] = opened("hydra")
    monkeypatch.setattr(session.text, "_target", SimpleNamespace(positions=len(session.text.tokens) + 1))
    assert session.text.row_share == 0
    assert session.text._states.row_share is None


@pytest.mark.parametrize("name", ["blockwise", "hydra"])
def test_drafts_fit_the_room_that_is_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards heads with few positions: reading committed tokens may leave less room than the plan counted on."""
    plan = GrowthPlan(levels=3, top_k=2, expanded=2, nodes=9, ratios=[1.0] * 3)
    for room in (2, 0):
        _, [session] = opened(name)
        monkeypatch.setattr(HeadText, "depth", room)
        [grown] = grow_whole([session.text], [plan], [1.0])
        assert (grown is None) == (room == 0)
        assert grown is None or len(grown.extended) == room - 1


@pytest.mark.parametrize("name", ["medusa", "hydra", "eagle"])
def test_rows_of_a_whole_draft_are_dropped(name: str) -> None:
    """Guards states between rounds: only the committed text has rows."""
    _, [session] = opened(name)
    assert len(session.propose(Budget(nodes=9, depth=3))) == 9
    state = session.text.known_state
    if isinstance(state, LevelState):
        assert len(state.contexts) == 1
    else:
        assert isinstance(state, FeatureState)
        assert not state.cache.drafted


@pytest.mark.parametrize("name", ["medusa", "blockwise"])
@torch.inference_mode()
def test_texts_of_a_batch_may_know_different_depths(name: str) -> None:
    """Guards logits that are kept by depth: texts that lack others are read together, each gets its own."""
    head, target = make_heads()[name][0], tiny_target()
    texts = [torch.randn(2, 1, HIDDEN, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    together, alone = ([head.open(0, target) for _ in texts] for _ in range(2))
    for states in (together, alone):
        for state, hidden in zip(states, texts, strict=True):
            state.extend(hidden, torch.tensor([1, 2]))
    together[0].start()
    found = head.grow_all(together, [[3], [4]], [[-1], [-1]])
    for state, other in zip(alone, found, strict=True):
        torch.testing.assert_close(state.grow([5], [-1]), other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("level_price", "row_price", "selected"),
    [(0.0, 0.0, [0, 1]), (0.5, 0.3, [0, 1]), (0.65, 0.3, []), (0.3, 0.45, [0]), (0.55, 0.45, [])],
)
def test_rows_and_levels_must_be_worth_their_prices(level_price: float, row_price: float, selected: list[int]) -> None:
    """Guards the choice of nodes: each row by itself, and all of them together with the level."""
    ids, probabilities = np.array([[7, 8]], np.int32), np.array([[0.5, 0.4]], np.float32)
    nodes = np.empty(4, np.int32), np.empty(4, np.int32), np.empty(4, np.float32)
    root, limits = np.array([ROOT], np.int32), (0.0, 1.0, level_price, row_price)
    count, level, total = whole_drafts.add_level(*nodes, 0, root, ids, probabilities, 2, 9, *limits)
    assert (count, level.tolist()) == (2, selected)
    assert not selected or total == pytest.approx(probabilities[0, selected].sum())


def test_levels_of_parallel_heads_are_projected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the one reading of the projection that all depths of a draft share."""
    calls = list[int]()
    project = HFTargetParts.project
    monkeypatch.setattr(HFTargetParts, "project", lambda self, x: (calls.append(len(x)), project(self, x))[1])
    for name in ("medusa-shared", "blockwise"):
        calls.clear()
        _, [session] = opened(name)
        assert len(session.propose(Budget(nodes=9, depth=3))) == 9
        assert calls == [3]


@pytest.mark.parametrize("name", ["medusa", "hydra", "p-eagle"])
def test_no_draft_waits_for_a_compiler(name: str) -> None:
    """Guards the first request: the kernels of a round are compiled when the drafter is made."""
    drafter, sessions = opened(name, seeds=(0, 1), settings=HeadSettings(min_probability=0))
    kernels = (whole_drafts.add_level, heaviest_first, calibration.excess)
    known = [len(kernel.signatures) for kernel in kernels]
    assert min(known) > 0
    for budgets in ([Budget(nodes=9, depth=3)] * 2, [Budget(nodes=9, depth=3), Budget(nodes=3, depth=2, trees=False)]):
        for session, draft in zip(sessions, drafter.propose(sessions, budgets), strict=True):
            path = np.zeros(1, np.int32)
            hidden = torch.zeros(len(draft) + 1, make_heads()[name][1], HIDDEN)
            session.observe(Verified(tree=draft, path=path, tokens=draft.tokens[:2], hidden=hidden))
    assert [len(kernel.signatures) for kernel in kernels] == known
