"""PARD: a small model with a mask token drafts a block in one pass."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from block_heads import check_greedy, check_histories, target_of
from models import VOCABULARY, perturbed, tiny_model
from speculant import Speculator
from speculant.api.draft_caches import open_draft_caches
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.pard.head import PardHead

TEXT = torch.tensor([5, 7, 9, 11, 13, 8, 4, 6, 10, 12, 14, 3])
MASK = 60


def head_of(draft: object, tokens: int = 4) -> PardHead:
    caches = open_draft_caches(draft, VOCABULARY)
    return PardHead(caches, MASK, vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, tokens=tokens)


def test_block_is_the_model_s_over_masks() -> None:
    """Guards the pass: logits after the root and after each of K - 1 masks, whose rows are dropped."""
    _, parts = target_of()
    draft = tiny_model("llama")
    state = head_of(draft).open_text(TEXT[:1].tolist(), parts, None)
    with torch.inference_mode():
        state.extend(torch.empty(5, 0, 0), TEXT[1:6])
        state.start()
        state.drop()
        state.extend(torch.empty(2, 0, 0), TEXT[6:8])  # two accepted tokens are read in the next pass
        got = torch.cat([state.start(), *(state.grow([9], [row]) for row in (-1, 0, 1))])
        given = torch.cat([TEXT[:8], torch.tensor([MASK] * 3)])
        want = draft(given[None]).logits[0, 7:]
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_cached_is_uncached() -> None:
    """Guards the model's cache over rounds and crops."""
    _, parts = target_of()
    head = head_of(tiny_model("llama"))
    check_histories(lambda: head.open_text(TEXT[:1].tolist(), parts, None), torch.empty(11, 0, 0), TEXT, depth=3)


def test_a_folder_with_a_mask_token_is_one(tmp_path: Path) -> None:
    """Guards `head=FOLDER`: config.json names the mask; greedy text is the target's."""
    model, _ = target_of()
    draft = perturbed(tiny_model("llama"), 0.05)
    draft.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"pard_token": MASK, "spd_type": "pard"}))
    speculator = check_greedy(model, str(tmp_path))
    assert speculator.method == "pard"
    (tmp_path / "config.json").write_text(json.dumps(config | {"pard_token": 99}))
    with pytest.raises(UnsupportedError, match="token 99"):
        Speculator.from_transformers(model, head=str(tmp_path))


def test_positions_end_drafts() -> None:
    """Guards models with fewer positions than the target: drafts end, the text goes on."""
    _, parts = target_of()
    head = head_of(tiny_model("gpt2", n_positions=16))
    state = head.open_text(TEXT[:1].tolist(), parts, None)
    with torch.inference_mode():
        state.extend(torch.empty(10, 0, 0), TEXT[1:11])
        assert state.room is not None
        assert len(state.start()) == 1


def test_fewer_tokens_than_the_target() -> None:
    """Guards models that know fewer tokens: their logits are of the first ones."""
    caches = open_draft_caches(tiny_model("llama"), VOCABULARY + 4)
    head = PardHead(caches, MASK, vocabulary=VOCABULARY, target_vocabulary=VOCABULARY + 4)
    assert head.ids is not None
    assert np.array_equal(head.ids.numpy(), np.arange(VOCABULARY))
