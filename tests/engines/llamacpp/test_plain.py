"""GGUF models that drafts cannot be verified on: their text comes all the same, and a failed pass leaves it right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ggufs import mamba_gguf, needs_llamacpp
from passes import IDS, plain_text
from speculant import Speculator
from speculant.core.errors import UnsupportedError

needs_llamacpp()
PROMPT = IDS[0].tolist()
OPTIONS: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0}


def test_a_recurrent_model_is_decoded_plainly() -> None:
    """Guards Mamba in llama.cpp, alone and in batches, against the same weights in transformers."""
    path, model = mamba_gguf()
    speculator = Speculator.from_gguf(path, threads=1, cache_type="f32", flash_attention=False, sequences=4)
    expected = plain_text(model, IDS, 20)
    result = speculator.generate(PROMPT, **OPTIONS)
    assert result.ids == expected
    assert "is recurrent" in result.stats.notes[-1]
    assert "decoded plainly, without drafts" in result.stats.notes[-1]
    results = speculator.generate_batch([PROMPT, PROMPT[:7], PROMPT], size=3, **OPTIONS)
    assert [each.ids for each in results] == [expected, plain_text(model, IDS[:, :7], 20), expected]
    with pytest.raises(UnsupportedError, match="is recurrent"):
        Speculator.from_gguf(path, threads=1, strict=True)


def test_a_failed_pass_is_repeated_on_the_state_before_it() -> None:
    """Guards the running state: what a pass has read and nobody kept is forgotten, and the text is read again."""
    path, model = mamba_gguf()
    speculator = Speculator.from_gguf(path, threads=1, cache_type="f32", flash_attention=False)
    cache, tokens = speculator.prepare(PROMPT, **OPTIONS).target, plain_text(model, IDS, 20)
    assert cache.prefill() is not None
    for place, token in enumerate(tokens[:-1]):
        row = np.array([token], np.int32), np.array([-1], np.int32)
        if place == 6:
            cache.forward(*row)
            cache.rollback()
        assert int(cache.forward(*row).logits[0].argmax()) == tokens[place + 1]
        cache.keep([0])
