"""Rows behind padding on classes whose text depends on it: each is written as in a call of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import cache_utils

from architecture_matrix.catalogue import build, names
from architecture_matrix.compare import Guesses, random_prompt
from speculant import Speculator
from speculant.engines.hf.probe import padding
from speculant.engines.hf.probe.padding import padding_outcome

LENGTHS = (2, 9, 33)
# Older releases let GIT's sequences share a pass, and decode states only from a text's beginning.
CURRENT = hasattr(cache_utils, "LinearAttentionLayer")
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}


def speculator_of(name: str) -> Speculator:
    """Return a speculator of a tiny model, with sdpa where the class has it."""
    try:
        model = build(name, "sdpa", positions=128)
    except ValueError:
        model = build(name, "eager", positions=128)
    return Speculator.from_transformers(model, method="none", nodes=12, fast=False)


@pytest.mark.parametrize(
    ("name", "reads", "drafts"),
    [
        ("llama4_text", True, True),  # chunks are counted from the first slot
        ("rwkv", True, True),  # takes no mask
        ("git", True, False),  # sequences share no pass behind padding
        pytest.param("unlimited_ocr", True, False, marks=pytest.mark.slow),  # its window is as long as its prompt
        ("mamba2", False, True),  # states alone
        ("llama", False, True),
    ],
)
def test_rows_are_those_of_calls_of_their_own(name: str, reads: bool, drafts: bool) -> None:
    """Guards what the probe finds of padding: whether it is read, and whether drafts are verified behind it."""
    if name not in names() or (name in ("git", "mamba2") and not CURRENT):
        pytest.skip("this release of transformers has no such class, or passes padding over otherwise")
    speculator = speculator_of(name)
    model, prompts = speculator.model, [random_prompt(length) for length in LENGTHS]
    ids = torch.tensor([[0] * (LENGTHS[-1] - len(each)) + each for each in prompts])
    mask = torch.tensor([[0] * (LENGTHS[-1] - length) + [1] * length for length in LENGTHS])
    expected = torch.cat(
        [model.generate(ids[row : row + 1], attention_mask=mask[row : row + 1], **OPTIONS) for row in range(3)]
    )
    texts = [row[LENGTHS[-1] :].tolist() for row in expected]
    known = [*zip(prompts, texts, strict=True), *zip(ids.tolist(), texts, strict=True)]
    speculator.drafter = Guesses({tuple(prompt): text for prompt, text in known})
    assert torch.equal(model.generate(ids, attention_mask=mask, custom_generate=speculator, **OPTIONS), expected)
    found = padding_outcome(speculator.engine._runner)
    assert (found.read, found.drafts) == (reads, drafts)


@pytest.mark.skipif(not CURRENT, reason="drafts are verified behind padding")
def test_a_padded_row_without_drafts_says_so() -> None:
    """Guards the note of a call that is decoded plainly for its padding."""
    speculator = speculator_of("git")
    ids = torch.tensor([[0, 0, 0, *random_prompt(9)]])
    mask = (torch.arange(12) >= 3).long()[None]
    speculator.model.generate(ids, attention_mask=mask, custom_generate=speculator, **OPTIONS)
    assert speculator.last_stats is not None
    assert any("padding" in note for note in speculator.last_stats.notes)


def test_padding_is_examined_once_and_only_for_padded_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards start-up time: prompts without padding examine none, and a second process reads the stored outcome."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    speculator = speculator_of("llama")
    ids = torch.tensor([random_prompt(9)])
    speculator.model.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=speculator, **OPTIONS)
    assert not list(tmp_path.glob("*/tiny-padding-*"))
    mask = (torch.arange(9) >= 3).long()[None]
    speculator.model.generate(ids, attention_mask=mask, custom_generate=speculator, **OPTIONS)
    assert len(list(tmp_path.glob("*/tiny-padding-*"))) == 1
    monkeypatch.setattr(padding, "_examine", lambda _: pytest.fail("examined again"))
    again = speculator_of("llama")
    again.model.generate(ids, attention_mask=mask, custom_generate=again, **OPTIONS)
