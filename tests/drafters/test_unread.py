"""What a drafter's model must read before it drafts is known before it does, since long prompts cost many passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from heads import SINGLE, begun, random_head
from models import perturbed, tiny_model
from speculant.core.drafter import EMPTY_PATH, Budget, SessionRequest, Verified
from speculant.core.tree import DraftTree
from speculant.engines.hf.engine import HFEngine
from speculant.registry import METHODS, BuildContext, build_drafter

PROMPT = [5, 9, 14, 3, 8, 5, 9, 14, 3, 8, 5, 9]
BUDGET = Budget(nodes=4, depth=2)
MODELS = [name for name, method in METHODS.items() if method.takes_draft_model and not method.drafts_text]


@pytest.mark.parametrize("method", MODELS)
def test_draft_models_read_the_prompt_first(method: str) -> None:
    """Guards "never slower": the prompt waits until the first draft, and counts as what that reads."""
    engine: Any = HFEngine(perturbed(tiny_model("llama"), 0.2))
    context = BuildContext(vocabulary=61, open_cache=lambda prompt: engine.open(torch.from_numpy(prompt).long()[None]))
    session = build_drafter(method, context).open(SessionRequest(prompt=np.array(PROMPT, np.int32)))
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=np.array([7], np.int32)))
    assert len(PROMPT) <= session.unread() <= len(PROMPT) + 1
    session.propose(BUDGET)
    assert session.unread() == 0
    session.close()


@pytest.mark.parametrize(("method", "name"), SINGLE)
def test_heads_read_the_prompt_first(method: str, name: str) -> None:
    """Guards "never slower" for heads, of which those united with a memory can draft without reading."""
    model = tiny_model("llama")
    drafter = build_drafter(method, BuildContext(vocabulary=61, head=random_head(model, name)))
    _, start, seen = begun(drafter.needs, model, [*PROMPT, 7])
    session = drafter.open(start)
    session.observe(seen)
    assert session.unread() >= (1 if method == "assistant" else len(PROMPT))  # which reads the target's cache
    assert session.selective == (method in {"mix-head", "suffix-head"})
    session.propose(BUDGET)
    assert session.unread() == 0
    session.close()


@pytest.mark.parametrize("method", [name for name, each in METHODS.items() if each.replayable])
def test_memories_read_nothing(method: str) -> None:
    """Guards memories, whose drafts are never put off by the length of a prompt."""
    session = build_drafter(method, BuildContext(vocabulary=61)).open(SessionRequest(prompt=np.array(PROMPT, np.int32)))
    assert session.unread() == 0
