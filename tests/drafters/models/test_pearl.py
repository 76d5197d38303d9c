"""PEARL: what is drafted ahead is used exactly where the text went that way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models import tiny_model
from speculant.core.drafter import Budget, Start, Verified
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.models.pearl import PearlDrafter, PearlSettings
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
