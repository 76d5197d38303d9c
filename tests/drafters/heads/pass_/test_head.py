"""PaSS: learned look-ahead embeddings, and passes of the target that read them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from block_heads import check_greedy, lent_cache, target_of
from speculant import Speculator
from speculant.core.errors import UnsupportedError
from speculant.drafters.heads.checkpoints.checkpoint import read_checkpoint
from speculant.drafters.heads.checkpoints.formats import FORMATS, load_head
from speculant.drafters.heads.drafter import LoadedHead
from speculant.drafters.heads.pass_.checkpoint import save
from speculant.drafters.heads.pass_.head import PaSSHead
from text_heads import pass_head

TEXT = torch.tensor([5, 7, 9, 11, 13, 8])


def test_is_the_formula() -> None:
    """Guards the pass: the model over the text's embeddings with the learned ones behind them; nothing stays."""
    model, parts = target_of()
    head, cache = pass_head(), lent_cache(model, TEXT[:-1])
    state = head.open_text(TEXT[:1].tolist(), parts, cache)
    with torch.no_grad():
        state.extend(torch.empty(5, 0, 0), TEXT[1:])
        got = torch.cat([state.start(), *(state.grow([9], [row]) for row in (-1, 0, 1))])
        given = torch.cat([parts.embed(TEXT), head.look_ahead])[None]
        want = model(inputs_embeds=given).logits[0, len(TEXT) - 1 :]
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert cache.uncommitted == 0
    assert cache.length == len(TEXT) - 1
    assert head.depth == 4


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "mistral"])
def test_greedy_text_is_the_target_s(name: str) -> None:
    """Guards losslessness; the first token of a draft is the target's own, so every round yields two at least."""
    model, parts = target_of(name)
    speculator = check_greedy(model, LoadedHead(pass_head(), parts, "pass", "pass"), nodes=3)
    stats = speculator.generate(TEXT.tolist(), max_new_tokens=21, temperature=0).stats
    assert stats.mat >= 1.9


def test_sampling_accepts_the_first_token() -> None:
    """Guards q of the first token, which is p: it is accepted wherever probabilities are compared."""
    model, parts = target_of()
    head = LoadedHead(pass_head(), parts, "pass", "pass")
    speculator = Speculator.from_transformers(model, head=head, verifier="speculative-sampling", nodes=1, fast=False)
    assert speculator.generate(TEXT.tolist(), max_new_tokens=21, temperature=1.0, seed=3).stats.mat >= 1.9


def test_accelerated_passes() -> None:
    """Guards the view where the library's own code runs the layers."""
    model, parts = target_of()
    speculator = Speculator.from_transformers(
        model, head=LoadedHead(pass_head(), parts, "pass", "pass"), nodes=3, fast=True
    )
    want = model.generate(TEXT[None], max_new_tokens=10, do_sample=False)[0, len(TEXT) :].tolist()
    assert list(speculator.generate(TEXT.tolist(), max_new_tokens=10, temperature=0).ids) == want


def test_checkpoint(tmp_path: Path) -> None:
    """Guards the layout: found, loaded and saved; a head of another hidden size is refused."""
    _, parts = target_of()
    head = pass_head()
    save(head, tmp_path, parts)
    assert [each.kind for each in FORMATS if each.matches(read_checkpoint(tmp_path))] == ["pass"]
    loaded = load_head(tmp_path, parts)
    assert isinstance(loaded.head, PaSSHead)
    assert torch.equal(loaded.head.look_ahead, head.look_ahead)
    save(pass_head(16), tmp_path, parts)
    with pytest.raises(UnsupportedError, match="size 16"):
        load_head(tmp_path, parts)
