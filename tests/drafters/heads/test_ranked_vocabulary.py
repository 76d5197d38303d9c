"""Heads that draft frequent tokens alone: their logits, their texts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eagles import eagle_head, mtp_head, states, target_model
from heads import random_head
from models import endless
from passes import plain_text
from speculant import Speculator
from speculant.core.drafter import EMPTY_PATH, Budget, SessionRequest, Verified
from speculant.core.errors import FileError, SpeculantError, UnsupportedError, UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.heads.ranked_vocabulary import read_ranked, reduce_vocabulary
from speculant.engines.hf.views.target_parts import HFTargetParts

RANKED = [7, 3, 21, 40, 5, 11]
PROMPT = [5, 9, 14, 3, 8]


@pytest.fixture
def ranked(tmp_path: Path) -> str:
    """Return a file of ranked ids."""
    file = tmp_path / "ranked.json"
    file.write_text(json.dumps(RANKED), "utf-8")
    return str(file)


HEADS: dict[str, Any] = {
    "eagle": lambda: eagle_head(inner=512),
    "mtp": lambda: mtp_head(inner=512),
    "mtp of the target's class": lambda: mtp_head(kind="mixtral", inner=512),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("fast", [False, True])
@torch.inference_mode()
def test_logits_are_those_of_the_listed_tokens(ranked: str, name: str, fast: bool) -> None:
    """Guards rows and order of the projection, in compiled steps too, and that the head itself stays whole."""
    head, target = HEADS[name](), HFTargetParts(target_model(), fast=fast)
    reduced, parts = reduce_vocabulary(head, target, ranked, 4, kind="mtp")
    hidden, following = states(6, 1)
    found = []
    for own, its in ((head, target), (reduced, parts)):
        state = own.open(0, its)
        state.extend(hidden, following)
        found.append(torch.cat([state.start(), state.grow([3, 4], [-1, -1])]))
    torch.testing.assert_close(found[1], found[0][:, RANKED[:4]], atol=1e-4, rtol=1e-4)
    assert head.ids is None


@pytest.mark.parametrize("fast", [False, True])
def test_listed_tokens_alone_are_drafted(ranked: str, fast: bool) -> None:
    """Guards the ids of whole drafts: they are the target's tokens, of the first `vocabulary_size` of the file."""
    loaded = LoadedHead(mtp_head(inner=512), HFTargetParts(target_model(), fast=fast), kind="mtp", method="mtp")
    drafter = HeadDrafter(loaded, settings=HeadSettings(vocabulary=ranked, vocabulary_size=5))
    session = drafter.open(SessionRequest(prompt=np.arange(8, dtype=np.int32)))
    tokens = np.array([3], np.int32)
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens, hidden=states(8, 1)[0]))
    drafted = set(session.propose(Budget(nodes=20, depth=5)).tokens.tolist())
    assert drafted <= set(RANKED[:5])
    assert len(drafted) > 1


@pytest.mark.parametrize("method", ["eagle2", "mtp", "mix-head"])
@pytest.mark.parametrize("fast", [False, None])
def test_text_is_the_targets(ranked: str, method: str, fast: bool | None) -> None:
    """Guards losslessness: tokens outside the list are the target's to write."""
    model = endless("llama")
    head = random_head(model, "eagle" if method == "eagle2" else "mtp")
    speculator = Speculator.from_transformers(
        model, method=method, head=head, nodes=6, fast=fast, settings={"vocabulary": ranked}
    )
    found = speculator.generate(PROMPT, max_new_tokens=16, temperature=0, eos_token_id=None)
    assert found.ids == plain_text(model, torch.tensor([PROMPT]), 16)


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        ("{", FileError, "cannot be read"),
        ("[]", FileError, "holds no list of token ids"),
        ('["a"]', FileError, "holds no list of token ids"),
        ("[1, 64]", UsageError, "another tokenizer"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, content: str, error: type[SpeculantError], said: str) -> None:
    """Guards messages: damaged files, and lists of other tokenizers."""
    file = tmp_path / "ranked.json"
    file.write_text(content, "utf-8")
    with pytest.raises(error, match=said):
        read_ranked(file, 64)


def test_lists_of_torch_are_read(tmp_path: Path) -> None:
    """Guards FR-Spec's own files: lists and tensors that torch has saved, each token once."""
    for name, held in (("list.pt", [4, 2, 4, 9]), ("tensor.pt", torch.tensor([4, 2, 9]))):
        torch.save(held, tmp_path / name)
        assert read_ranked(tmp_path / name, 64) == [4, 2, 9]


def test_heads_that_cannot_leave_out_tokens_are_refused(ranked: str) -> None:
    """Guards against an option without effect: projections of the head's own, and sizes without a file."""
    target = HFTargetParts(target_model())
    own = mtp_head(output=True)
    with pytest.raises(UnsupportedError, match="use the target's output projection"):
        reduce_vocabulary(own, target, ranked, 0, kind="mtp")
    medusa = random_head(target_model(), "medusa")
    with pytest.raises(UnsupportedError, match="kind medusa"):
        HeadDrafter(medusa, settings=HeadSettings(vocabulary=ranked))
    with pytest.raises(UsageError, match="needs vocabulary=FILE"):
        HeadDrafter(medusa, settings=HeadSettings(vocabulary_size=5))
    with pytest.raises(UsageError, match="at least 0"):
        HeadDrafter(medusa, settings=HeadSettings(vocabulary=ranked, vocabulary_size=-1))
