"""Drafts of several requests that grow together: the drafts are those of each alone, and the head runs once a level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eagles import eagle3_head, eagle_head, p_eagle_head, target_model
from models import tiny_model
from speculant import Speculator
from speculant.core.drafter import EMPTY_PATH, Budget, SessionRequest, Verified
from speculant.core.sampler import Sampling
from speculant.core.tree import DraftTree
from speculant.drafters.heads import feature_state
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.heads.memory_union import MixHeadDrafter
from speculant.engines.hf.views.target_parts import HFTargetParts

PROMPTS = ([5, 9, 14, 3, 8], [7, 7, 2], [30, 1, 2, 3, 4, 5, 6, 30, 1, 2])
HEADS: dict[str, Any] = {"eagle": eagle_head, "eagle3": eagle3_head, "p-eagle": p_eagle_head}


def rows_of(tokens: list[int], taps: int) -> Tensor:
    """Return states [n, taps, D] that depend on the token and its position alone."""
    rows = [torch.randn(taps, 32, generator=torch.Generator().manual_seed(100 * i + t)) for i, t in enumerate(tokens)]
    return torch.stack(rows)


def observe(session: Any, prompt: list[int], root: int, taps: int) -> None:
    """Let a session observe its prompt's pass."""
    tokens = np.array([root], np.int32)
    hidden = rows_of(prompt, taps)
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens, hidden=hidden))


def sessions_of(drafter: Any, taps: int) -> list[Any]:
    """Return a session for each prompt, of different sampling."""
    opened = []
    for place, prompt in enumerate(PROMPTS):
        sampling = Sampling(temperature=0.8 * place)
        session = drafter.open(SessionRequest(prompt=np.array(prompt, np.int32), sampling=sampling))
        observe(session, prompt, 7, taps)
        opened.append(session)
    return opened


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("tree", ["chain", "dynamic", "mix-head"])
def test_drafts_are_those_of_each_alone(name: str, tree: str) -> None:
    """Guards batches: texts of different lengths, budgets and sampling, drafts that end early, accepted tokens."""
    head, target = HEADS[name](), HFTargetParts(target_model())
    loaded = LoadedHead(head, target, kind=name, method=name)

    def drafter() -> Any:
        if tree == "mix-head":
            return MixHeadDrafter(loaded, vocabulary=target.vocabulary)
        return HeadDrafter(loaded, settings=HeadSettings(tree=tree, depth=4, top_k=3), sampled=True)

    taps = len(head.taps)
    together, alone = drafter(), drafter()
    joint, apart = sessions_of(together, taps), sessions_of(alone, taps)
    budgets = [Budget(nodes=nodes, depth=5) for nodes in (6, 2, 12)]
    for _ in range(3):
        found = together.propose(joint, budgets)
        wanted = [alone.propose([each], [budget])[0] for each, budget in zip(apart, budgets, strict=True)]
        for draft, own in zip(found, wanted, strict=True):
            assert draft.tokens.tolist() == own.tokens.tolist()
            assert draft.parents.tolist() == own.parents.tolist()
            np.testing.assert_allclose(draft.weights, own.weights, atol=1e-4)
        for sessions in (joint, apart):
            for session, draft in zip(sessions, found, strict=True):
                path = np.array([0], np.int32) if len(draft) else EMPTY_PATH
                tokens = np.array([*draft.tokens[path], 11], np.int32)
                hidden = rows_of([9, *draft.tokens.tolist()], taps)
                session.observe(Verified(tree=draft, path=path, tokens=tokens, hidden=hidden))


def test_the_head_runs_once_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the gain: three texts, committed rows and three levels below them are four calls, not twelve."""
    head, calls = eagle_head(), list[int]()
    drafter = HeadDrafter(
        LoadedHead(head, HFTargetParts(target_model()), kind="eagle", method="eagle"),
        settings=HeadSettings(tree="chain", depth=4),
    )
    sessions, run = sessions_of(drafter, 1), feature_state.run_rows

    def counted(*arguments: Any) -> list[Tensor]:
        calls.append(len(arguments[-1]))
        return run(*arguments)

    for session in sessions:  # so that there are committed rows to read
        observe_token(session)
    monkeypatch.setattr(feature_state, "run_rows", counted)
    drafts = drafter.propose(sessions, [Budget(nodes=4, depth=4)] * 3)
    assert [len(draft) for draft in drafts] == [4, 4, 4]
    assert calls == [3, 3, 3, 3]


def observe_token(session: Any) -> None:
    """Let a session observe a round without a draft."""
    tokens, hidden = np.array([3], np.int32), rows_of([7], 1)
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens, hidden=hidden))


def test_texts_of_a_batch_are_plain_ones() -> None:
    """Guards whole batches with a head of random weights, whose drafts leave together and end apart."""
    model = tiny_model("llama")
    head = LoadedHead(eagle_head(), HFTargetParts(model), kind="eagle", method="eagle")
    prompts = [list(prompt) for prompt in PROMPTS]
    plain = Speculator.from_transformers(model, method="none")
    drafted = Speculator.from_transformers(model, head=head, nodes=5)
    wanted = [plain.generate(prompt, max_new_tokens=20, temperature=0).ids for prompt in prompts]
    results = drafted.generate_batch(prompts, size=3, max_new_tokens=20, temperature=0)
    assert [each.ids for each in results] == wanted
    assert sum(each.stats.drafted for each in results) > 20
