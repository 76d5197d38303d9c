"""Whole texts of speculative sampling have the target's distribution: every outcome of every random choice is decoded.

Drafts of models, tests and the target's own tokens, through `generate`, over rounds that follow one another.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

from encoder_decoders import build_encoder_decoder, count_encodings, noisy_copy
from models import endless
from outcomes import Outcomes
from speculant import Speculator
from speculant.engines.hf.prompt import slices_by_length

SOURCE, LENGTH, TOP_K = [2, 1, 3, 3, 2], 4, 2
DRAWN = {"chain": ("draft-model", {}), "tree": ("mcsd", {"widths": "2,1"}), "repeats": ("specinfer", {"widths": "2,1"})}
ENCODERS = pytest.mark.skipif(not slices_by_length(), reason="this release prepares such passes otherwise")


def _pair(name: str, encoder: bool) -> tuple[Any, Any]:
    """Return a target of four tokens and a draft model, whose encoder has the target's weights unless `encoder`."""
    if name == "llama":
        return (target := endless("llama", vocab_size=4, num_hidden_layers=1)), noisy_copy(target, 0.3, encoder=True)
    layers = {"decoder_layers": 1} if name == "bart" else {"num_layers": 1, "num_decoder_layers": 1}
    target = build_encoder_decoder(name, vocab_size=4, **layers)
    return target, noisy_copy(target, 0.3, encoder=encoder)


@pytest.mark.parametrize(
    ("name", "shape", "own_encoder"),
    [
        pytest.param("t5", "chain", False, marks=ENCODERS),
        pytest.param("bart", "tree", True, marks=ENCODERS),
        pytest.param("t5", "tree", False, marks=[ENCODERS, pytest.mark.slow]),
        pytest.param("bart", "chain", True, marks=[ENCODERS, pytest.mark.slow]),
        pytest.param("bart", "repeats", False, marks=[ENCODERS, pytest.mark.slow]),
        pytest.param("llama", "chain", False, marks=pytest.mark.slow),
    ],
)
def test_texts_have_the_targets_distribution(
    name: str, shape: str, own_encoder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards losslessness end to end, with the target's encoder or the draft model's own: texts of several rounds."""
    target, draft = _pair(name, own_encoder)
    encodings = count_encodings(draft) if name != "llama" else []
    method, settings = DRAWN[shape]
    speculator = Speculator.from_transformers(
        target, method=method, draft_model=draft, nodes=4, fast=False, settings=settings
    )
    found, accepted, outcomes = Counter[tuple[int, ...]](), 0.0, Outcomes()
    speculator.generate(SOURCE, max_new_tokens=LENGTH, temperature=0)  # the model is probed, which may draw
    outcomes.patch(monkeypatch)
    for outcome in outcomes:
        result = speculator.generate(SOURCE, max_new_tokens=LENGTH, temperature=0.8, top_k=TOP_K)
        found[tuple(result.ids)] += outcome.probability
        accepted += outcome.probability * result.stats.accepted
    assert bool(encodings) == own_encoder
    assert 0.2 < accepted < 2
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert dict(found) == pytest.approx(_own_texts(target), abs=1e-5)


def _own_texts(target: Any) -> dict[tuple[int, ...], float]:
    """Return the probability of every text that the target can write, from passes over whole texts."""

    @cache
    def after(text: tuple[int, ...]) -> dict[int, float]:
        given = torch.tensor([SOURCE])
        with torch.no_grad():
            if target.config.is_encoder_decoder:
                first = target.config.decoder_start_token_id
                logits = target(input_ids=given, decoder_input_ids=torch.tensor([[first, *text]])).logits
            else:
                logits = target(torch.tensor([[*SOURCE, *text]])).logits
        best = (logits[0, -1].double() / 0.8).topk(TOP_K)
        return dict(zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True))

    texts = dict[tuple[int, ...], float]()
    for text in product(range(4), repeat=LENGTH):
        chance = 1.0
        for place, token in enumerate(text):
            chance *= after(text[:place]).get(token, 0.0)
            if not chance:
                break
        else:
            texts[text] = chance
    return texts
