"""SAM-Decoding beside a head: long matches are continued, and the head drafts elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heads import oracle, random_head
from models import tiny_model
from passes import plain_text
from speculant import Speculator
from speculant.core.errors import UsageError
from speculant.drafters.heads.switching import SamHeadDrafter

TEXT = [9, 14, 3, 8, 5, 9, 14, 3, 8]


@pytest.mark.parametrize("nodes", [8, "auto"])
def test_texts_are_the_targets(nodes: int | str, tmp_path: Path) -> None:
    """Guards both sources over rounds, alone and in batches, and the memory of a second request."""
    model = tiny_model("llama")
    head = random_head(model)
    prompts = [TEXT, [7, 8, 9]]
    plain = [plain_text(model, torch.tensor([each]), 20) for each in prompts]
    speculator = Speculator.from_transformers(
        model, method="sam-head", head=head, nodes=nodes, settings={"threshold": 3}
    )
    assert isinstance(speculator.drafter, SamHeadDrafter)
    for _ in range(2):
        found = [speculator.generate(each, max_new_tokens=20, temperature=0) for each in prompts]
        assert [each.ids for each in found] == [text[: len(each.ids)] for text, each in zip(plain, found, strict=True)]
    batch = speculator.generate_batch(prompts, size=2, max_new_tokens=20, temperature=0)
    assert [each.ids for each in batch] == [each.ids for each in found]
    assert nodes == "auto" or found[0].stats.mat > 2
    speculator.save(tmp_path / "memory")
    Speculator.from_transformers(model, method="sam", memory=tmp_path / "memory")


def test_the_head_drafts_where_no_match_is_long() -> None:
    """Guards the switch: with a good head and a text that does not repeat, about what the head alone accepts."""
    model = tiny_model("llama")
    model.generation_config.eos_token_id = None
    prompt = [5, 9, 14, 3, 8]
    head = oracle(model, begin=5)
    mats = [
        Speculator.from_transformers(model, method=method, head=head, nodes=8, settings=settings)
        .generate(prompt, max_new_tokens=40, temperature=0)
        .stats.mat
        for method, settings in (("sam-head", {"threshold": 30}), ("eagle2", None))
    ]
    assert mats[0] == pytest.approx(mats[1], rel=0.2)
    assert mats[0] > 1.5
    with pytest.raises(UsageError, match="at least 1"):
        Speculator.from_transformers(model, method="sam-head", head=head, settings={"threshold": 0})
