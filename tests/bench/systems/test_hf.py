"""transformers' own decoding, counted like Speculant's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from architecture_matrix.catalogue import build
from models import tiny_model
from speculant.api.speculator import Speculator
from speculant.bench.suite.tasks import TaskRequest, TaskSampling
from speculant.bench.systems.hf import HuggingFace, check_hf
from speculant.bench.systems.system import SpeculantSystem
from speculant.core.errors import UnsupportedError, UsageError

NAMES = ["hf:generate", "hf:prompt-lookup"]
PROMPT = np.array([3, 4, 5, 6, 3, 4], np.int32)
REPEATING = np.array([7, 8, 9, 2] * 8, np.int32)  # 2 is the model's end of text
GREEDY = TaskSampling()


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a random model."""
    return tiny_model("llama")


@pytest.mark.parametrize("name", NAMES)
def test_forced(name: str, model: Any) -> None:
    """The recording is followed to its end, past the model's end-of-text token, and every token counts once."""
    outcome = HuggingFace(name, model).run(TaskRequest(PROMPT, len(REPEATING), REPEATING), GREEDY)
    assert outcome.ids == REPEATING.tolist()
    assert outcome.prefill_tokens + outcome.rounds + sum(outcome.accepted_by_depth) == len(REPEATING)
    assert (outcome.rounds < len(REPEATING) // 2) == (name == "hf:prompt-lookup")
    assert 0 < outcome.prefill_seconds < outcome.seconds


def test_prompt_lookup_does_not_learn_the_recorded_text(model: Any) -> None:
    """Where the text repeats nothing, nothing is accepted."""
    output = np.arange(10, 40, dtype=np.int32)
    outcome = HuggingFace("hf:prompt-lookup", model).run(TaskRequest(PROMPT, len(output), output), GREEDY)
    assert outcome.ids == output.tolist()
    assert outcome.rounds == len(output) - 1


@pytest.mark.parametrize("name", [*NAMES, "hf:assisted"])
def test_free_texts_are_those_of_plain_decoding(name: str, model: Any) -> None:
    """Greedy texts are the same, at the requested length."""
    request = TaskRequest(PROMPT, 24)
    plain = SpeculantSystem("none", lambda: Speculator.from_transformers(model, method="none")).run(request, GREEDY)
    outcome = HuggingFace(name, model, model if name == "hf:assisted" else None).run(request, GREEDY)
    assert outcome.ids == plain.ids


def test_nothing_counts_after_the_end_of_text(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end of text inside an accepted draft ends the count, whatever the release of transformers does there."""
    request = TaskRequest(PROMPT, 24)
    ids = HuggingFace("hf:generate", model).run(request, GREEDY).ids
    monkeypatch.setattr(model.generation_config, "eos_token_id", [ids[9]])
    for name in NAMES:
        assert HuggingFace(name, model).run(request, GREEDY).ids == ids[: ids.index(ids[9]) + 1]


def test_sampling_leaves_the_process_s_random_stream_alone(model: Any) -> None:
    """A seed gives the text that Speculant gives, and the global generator is unchanged."""
    before, sampling = torch.get_rng_state(), TaskSampling(1.0, 5)
    outcome = HuggingFace("hf:generate", model).run(TaskRequest(PROMPT, 16), sampling)
    own = SpeculantSystem("lookup", lambda: Speculator.from_transformers(model, method="lookup"))
    assert outcome.ids == own.run(TaskRequest(PROMPT, 16), sampling).ids
    assert torch.equal(before, torch.get_rng_state())
    assert HuggingFace("hf:generate", model).token_identical(sampling)
    assert not HuggingFace("hf:prompt-lookup", model).token_identical(sampling)


def test_names() -> None:
    """Unknown names are refused, and assisted generation needs a draft model."""
    with pytest.raises(UsageError, match="hf:prompt-lookup"):
        check_hf("hf:beam", draft_model=False)
    with pytest.raises(UnsupportedError, match="--draft-model"):
        check_hf("hf:assisted", draft_model=False)


def test_models_with_states_are_refused_before_they_run() -> None:
    """Guards the reason in place of transformers' error in the middle of a run."""
    model = build("mamba", "eager")
    with pytest.raises(UnsupportedError, match="verifies no drafts on models with recurrent states"):
        HuggingFace("hf:prompt-lookup", model)
    assert HuggingFace("hf:generate", model).run(TaskRequest(PROMPT, 4), GREEDY).ids


def test_stop_strings_of_a_checkpoint_are_refused_before_anything_runs() -> None:
    """Guards long runs: `generate` would fail in the first request, since it asks for a tokenizer."""
    model = tiny_model("llama")
    model.generation_config.stop_strings = ["."]
    with pytest.raises(UnsupportedError, match="stop strings"):
        HuggingFace("hf:generate", model)
