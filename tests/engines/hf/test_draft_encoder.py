"""Draft models that are encoder-decoders: the text is that of `generate`, and states are shared where they can be."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from encoder_decoders import SOURCE, T5, build_encoder_decoder, count_encodings, noisy_copy
from models import tiny_model
from speculant import Speculator
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.prompt import slices_by_length

pytestmark = [
    pytest.mark.skipif(not slices_by_length(), reason="this release prepares such passes otherwise"),
    pytest.mark.filterwarnings("ignore"),  # transformers warns of Whisper's own options
]
SOUND = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(2))


def _source(model: Any) -> dict[str, Any]:
    return {"input_features": SOUND} if model.config.model_type == "whisper" else {"input_ids": SOURCE}


def _generate(model: Any, **options: Any) -> list[int]:
    torch.manual_seed(1)
    ids: list[int] = model.generate(**{"max_new_tokens": 30, "do_sample": False} | _source(model) | options)[0].tolist()
    return ids


def _speculator(model: Any, draft: Any, **options: Any) -> Speculator:
    return Speculator.from_transformers(
        model, **{"method": "draft-model", "draft_model": draft, "nodes": 5, "fast": False} | options
    )


@pytest.mark.parametrize("name", ["t5", "bart", "whisper", pytest.param("marian", marks=pytest.mark.slow)])
def test_states_are_shared_or_computed_once(name: str) -> None:
    """Guards both ways of reading the source: the target's states of an equal encoder, else the draft model's own."""
    model = build_encoder_decoder(name)
    expected = _generate(model, max_new_tokens=20)
    for draft, passes, mat in (
        (noisy_copy(model, 0.02, encoder=False), 0, 1.5),
        (noisy_copy(model, 0.005, encoder=True), 1, 1.5),
        (copy.deepcopy(model).double().float(), 0, 4),
    ):
        encodings, speculator = count_encodings(draft), _speculator(model, draft)
        for _ in range(1 + passes):  # a second text reads the same source
            source = speculator.bind(source=_source(model))
            assert _generate(model, max_new_tokens=20, custom_generate=source) == expected
        stats = speculator.last_stats
        assert len(encodings) == passes
        assert stats is not None
        assert stats.mat > mat


@pytest.mark.parametrize("name", ["t5", pytest.param("bart", marks=pytest.mark.slow)])
def test_prompts_of_the_library_and_of_batches(name: str) -> None:
    """Guards sources given as prompts, alone and in a batch, whose texts share passes of the target."""
    model = build_encoder_decoder(name)
    prompts = [SOURCE[0].tolist(), SOURCE[0, :6].tolist()]
    expected = [_generate(model, input_ids=torch.tensor([prompt]))[1:] for prompt in prompts]
    draft = noisy_copy(model, 0.005, encoder=True)
    encodings, speculator = count_encodings(draft), _speculator(model, draft)
    found = speculator.generate_batch(prompts, max_new_tokens=30, temperature=0)
    assert [each.ids for each in found] == expected
    assert len(encodings) == 2
    assert speculator.last_stats is not None
    assert speculator.last_stats.mat > 1.5


@pytest.mark.parametrize("method", ["draft-model", "opt-tree"])
def test_sampled_text_is_that_of_generate(method: str) -> None:
    """Guards chosen drafts below a sampled target: with the same random stream, the text is that of `generate`."""
    model = build_encoder_decoder("t5")
    expected = _generate(model, do_sample=True, top_k=20)
    speculator = _speculator(
        model, noisy_copy(model, 0.02, encoder=False), method=method, verifier="sample-then-follow"
    )
    assert _generate(model, do_sample=True, top_k=20, custom_generate=speculator) == expected
    assert speculator.last_stats is not None
    assert speculator.last_stats.accepted > 0


def test_padding_is_not_read() -> None:
    """Guards padded sources: the draft model's own encoder gives the same drafts as without."""
    model = build_encoder_decoder("bart")
    padded = {"input_ids": torch.nn.functional.pad(SOURCE, (0, 4)), "attention_mask": torch.ones(1, 15).long()}
    padded["attention_mask"][:, 11:] = 0
    speculator, mats = _speculator(model, noisy_copy(model, 0.01, encoder=True)), list[float]()
    for given in (padded, {"input_ids": SOURCE}):
        assert _generate(model, **given, custom_generate=speculator.bind(source=given)) == _generate(model, **given)
        assert speculator.last_stats is not None
        mats.append(speculator.last_stats.mat)
    assert mats[0] == mats[1]


def test_drafts_end_at_the_last_position_of_the_draft_model() -> None:
    """Guards tables of positions that are shorter than the target's: the text goes on without drafts."""
    model = build_encoder_decoder("whisper")
    draft = copy.deepcopy(model)
    table = draft.model.decoder.embed_positions
    table.weight = torch.nn.Parameter(table.weight[:24].clone())
    draft.config.max_target_positions = 24
    expected = _generate(model, max_new_tokens=32)
    speculator = _speculator(model, draft)
    assert _generate(model, max_new_tokens=32, custom_generate=speculator) == expected


def test_pairs_that_do_not_fit_are_refused() -> None:
    """Guards messages: no encoder, other tokens, another input, a source that `generate` does not pass on."""
    model, whisper = build_encoder_decoder("t5"), build_encoder_decoder("whisper")
    with pytest.raises(UnsupportedError, match="its target has no encoder"):
        _speculator(tiny_model("llama", vocab_size=T5["vocab_size"]), model)
    with pytest.raises(UnsupportedError, match=r"8 mel bins .* model's no"):
        _speculator(whisper, model)
    other = copy.deepcopy(whisper)
    other.config.num_mel_bins = 80
    with pytest.raises(UnsupportedError, match=r"8 mel bins .* model's 80"):
        _speculator(whisper, other)
    draft = noisy_copy(model, 0.01, encoder=True)
    with pytest.raises(UnsupportedError, match=r"bind\(source=inputs\)"):
        _generate(model, custom_generate=_speculator(model, draft))
    with pytest.raises(UnsupportedError, match="cannot learn online"):
        _speculator(model, draft, online=True)
