"""JetSpec: the best tree of a block's probabilities, of more nodes than other methods with heads draft."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from block_heads import check_greedy, states, target_of
from dflash_heads import BLOCKS, PROMPT, SIZES, block_config, dflash_head
from speculant import Speculator
from speculant.api.heads import open_head
from speculant.api.sizes import Sizes, max_rows
from speculant.core.drafter import Budget, SessionRequest
from speculant.core.errors import UsageError
from speculant.drafters.heads.dflash.drafter import DFlashDrafter, JetSpecDrafter, JetSpecSettings
from speculant.drafters.heads.drafter import LoadedHead
from speculant.options.drafting import DraftingOptions
from speculant.sizing.state import SequenceSizing
from walks import curve


def loaded(parts: Any) -> LoadedHead:
    return LoadedHead(dflash_head(BLOCKS["JetSpec"]), parts, "dflash", "jetspec")


@pytest.mark.parametrize("nodes", [3, 40, 200])
def test_drafts_the_best_tree(nodes: int) -> None:
    """Guards the tree: the most probable paths of `top_k` ranks a slot, all enumerated, and none besides."""
    model, parts = target_of()
    head = loaded(parts)
    drafter = JetSpecDrafter(head, settings=JetSpecSettings(top_k=4))
    hidden = states(model, parts, head.head.taps, torch.tensor([PROMPT]))[0][0]
    state = head.head.open(0, parts)
    with torch.inference_mode():
        state.extend(hidden[:-1], torch.tensor(PROMPT[1:]))
        logits = [state.start()] + [state.grow([5], [row]) for row in range(-1, 2)]
    best = [each[0].softmax(-1).topk(4).values.tolist() for each in logits]
    every = [
        math.prod(best[d][rank] for d, rank in enumerate(path))
        for depth in range(1, 5)
        for path in itertools.product(range(4), repeat=depth)
    ]
    text = drafter.open_text(SessionRequest(prompt=np.array(PROMPT[:-1], np.int32)))
    text.state, text.tokens = state, PROMPT
    session = drafter.open(SessionRequest(prompt=np.array(PROMPT[:-1], np.int32)))
    session.text = text  # type: ignore[attr-defined]
    draft = session.propose(Budget(nodes=nodes, depth=8))
    assert len(draft) == nodes
    want = sorted(every, reverse=True)[:nodes]
    np.testing.assert_allclose(sorted(draft.weights.tolist(), reverse=True), want, rtol=1e-4)


@pytest.mark.parametrize("nodes", [6, 150])
def test_text_is_the_target_s(nodes: int) -> None:
    """Guards losslessness of trees beyond 64 nodes: alone, in a second turn, in a batch."""
    model, parts = target_of()
    check_greedy(model, loaded(parts), nodes=nodes)


def test_automatic_sizes_go_to_the_setting() -> None:
    """Guards the cap: it is the method's setting, which sizing, probe and passes follow."""
    model, parts = target_of()
    assert DFlashDrafter(loaded(parts)).needs.max_nodes == 64
    drafter = JetSpecDrafter(loaded(parts))
    assert drafter.needs.max_nodes == 256 == max_rows(drafter.needs, 1)
    sizing = Sizes(DraftingOptions(nodes="auto"), drafter.needs, known=curve(0.0, maximum=300)).of(1)
    state = sizing.open()
    assert isinstance(state, SequenceSizing)
    state.wanted = 300.0
    assert sizing.nodes([state]) == [256]
    settings = {"max_nodes": 100}
    speculator = Speculator.from_transformers(
        model, method="jetspec", head=loaded(parts), settings=settings, fast=False
    )
    assert speculator.drafter.needs.max_nodes == 100
    assert speculator.generate(PROMPT, max_new_tokens=12, temperature=0).stats.rounds > 0
    with pytest.raises(UsageError, match="max_nodes"):
        JetSpecDrafter(loaded(parts), settings=JetSpecSettings(max_nodes=0))


def test_a_checkpoint_is_known_by_its_causal_head(tmp_path: Path) -> None:
    """Guards detection: a folder in JetSpec's layout drafts trees without a method's name."""
    model, _ = target_of()
    config = SIZES | {"block_size": 5} | block_config(causal_head=True)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(dflash_head(BLOCKS["JetSpec"]).state_dict(), tmp_path / "model.safetensors")
    head = open_head(str(tmp_path), model)
    speculator = Speculator.from_transformers(model, method=head.method, head=head, nodes=80, fast=False)
    stats = speculator.generate(PROMPT, max_new_tokens=40, temperature=0).stats
    assert stats.drafted / stats.rounds > 64
