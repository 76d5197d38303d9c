"""PEARL: what is drafted ahead is used exactly where the text went that way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import tiny_model
from speculant.core.drafter import Budget, Start, Verified
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.models.pearl import PearlDrafter, PearlSession, PearlSettings
from speculant.engines.hf.engine import HFEngine

PROMPT = [5, 9, 14, 3]


def verified(tree: DraftTree, accepted: int, own: int) -> Verified:
    """Return a round that accepted the first nodes of a chain."""
    path = np.arange(accepted, dtype=np.int32)
    return Verified(tree=tree, path=path, tokens=np.array([*tree.tokens[:accepted], own], np.int32))


def test_tokens_drafted_ahead_are_used() -> None:
    """Guards the pipeline: one token first; what was drafted behind it is the next draft, unless the text differs."""
    model = tiny_model("llama")
    engine = HFEngine(model)
    drafter = PearlDrafter(
        lambda prompt: engine.open(torch.from_numpy(prompt).long()[None]),
        vocabulary=61,
        settings=PearlSettings(ahead=4),
    )
    session = drafter.open(Start(prompt=np.array(PROMPT[:-1], np.int32)))
    session.observe(verified(DraftTree.empty(), 0, PROMPT[-1]))
    text = model.generate(torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False, eos_token_id=-1)[0, 4:].tolist()
    budget = Budget(nodes=8, depth=8)
    first = session.propose(budget)
    assert first.tokens.tolist() == text[:1]
    assert session.propose(budget).tokens.tolist() == text[:1]
    session.observe(verified(first, 1, text[1]))
    second = session.propose(budget)
    assert second.tokens.tolist() == text[2:5]
    session.observe(verified(second, 3, text[5]))
    assert session.propose(Budget(nodes=1, depth=8)).tokens.tolist() == text[6:7]
    session.observe(verified(DraftTree.from_paths([text[6:7]]), 0, (text[6] + 1) % 61))
    assert len(session.propose(budget)) == 1
    session.close()


def test_the_number_ahead_is_checked() -> None:
    """Guards against a draft that never ends."""
    with pytest.raises(UsageError, match="1 to 64"):
        PearlDrafter(lambda _: None, vocabulary=61, settings=PearlSettings(ahead=0))


def test_all_first_tokens_come_before_anything_is_drafted_ahead() -> None:
    """Guards batches: one worker drafts for all, so no sequence waits for what another drafts ahead."""
    passes = list[tuple[int, int]]()
    engine = HFEngine(tiny_model("llama"))

    def opened(prompt: Any) -> Any:
        cache, owner = engine.open(torch.from_numpy(prompt).long()[None]), len(prompt)
        forward = cache.forward

        def counted(tokens: Any, parents: Any) -> Any:
            passes.append((owner, len(tokens)))
            return forward(tokens, parents)

        cache.forward = counted
        return cache

    drafter = PearlDrafter(opened, vocabulary=61, settings=PearlSettings(ahead=3))
    sessions = [drafter.open(Start(prompt=np.array(PROMPT[:n], np.int32))) for n in (2, 3)]
    for session in sessions:
        session.observe(verified(DraftTree.empty(), 0, 7))
    drafter.propose(sessions, [Budget(nodes=4, depth=4)] * 2)
    for session in sessions:
        session.close()
    assert [owner for owner, _ in passes[:2]] == [2, 3]
    assert len(passes) == 2 + 2 * 3


def test_what_fails_ahead_ends_no_request() -> None:
    """Guards optional work: an error while drafting ahead costs the draft ahead, not the text."""
    engine, broken = HFEngine(tiny_model("llama")), list[bool]()

    def opened(prompt: Any) -> Any:
        cache = engine.open(torch.from_numpy(prompt).long()[None])
        forward = cache.forward

        def failing(tokens: Any, parents: Any) -> Any:
            if broken:
                raise ArithmeticError
            return forward(tokens, parents)

        cache.forward = failing
        return cache

    session = PearlDrafter(opened, vocabulary=61).open(Start(prompt=np.array(PROMPT[:-1], np.int32)))
    session.observe(verified(DraftTree.empty(), 0, PROMPT[-1]))
    assert isinstance(session, PearlSession)
    draft = session.draft(Budget(nodes=4, depth=4))
    broken.append(True)
    session.go_ahead()
    session.observe(verified(draft, 0, 9))
    broken.clear()
    assert len(session.propose(Budget(nodes=4, depth=4))) == 1
    broken.append(True)
    session.close()
