"""Drafts that grow whole without code of their own: they are those that grow level by level."""

from __future__ import annotations

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
from speculant.core.tree import DraftTree
from speculant.drafters.copying.context import heaviest_first
from speculant.drafters.heads import calibration, whole_drafts
from speculant.drafters.heads import session as session_module
from speculant.drafters.heads import text as text_module
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.heads.session import HeadSession
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
