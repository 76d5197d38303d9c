"""Forced runs: every pass is run, and the output is the recording."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import VOCABULARY, tiny_model
from scripted import Scripted, ScriptedSession, recording
from speculant.api.speculator import Speculator
from speculant.bench.replay.player import replay
from speculant.bench.systems.forced import ForcingProcessor, check_forced, fit_vocabulary, force
from speculant.core.drafter import Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import DraftTree
from speculant.engines.hf.probe.live_check import DEEPEST
from speculant.options.drafting import DraftingOptions
from speculant.registry import BuildContext, build_drafter
from speculant.verifiers.sample_then_follow import SampleThenFollow

PROMPT = np.array([3, 4, 5], np.int32)
OUTPUT = [7, 8, 9, 10, 11] * 6


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a random model."""
    return tiny_model("llama")


@pytest.mark.parametrize("method", ["none", "lookup", "mix"])
def test_the_output_is_the_recording(method: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own choices do not matter, and it is run once per round and once for the prompt."""
    passes, forward = [], model.forward
    monkeypatch.setattr(model, "forward", lambda *args, **options: passes.append(1) or forward(*args, **options))
    speculator = Speculator.from_transformers(model, method=method, nodes=8)
    ids, stats = force(speculator, PROMPT, OUTPUT)
    assert ids == OUTPUT
    assert 0 <= len(passes) - (stats.rounds + 1) <= DEEPEST + 1  # the live check's first sample
    assert (stats.mat > 2) == (method != "none")


def test_acceptance_is_that_of_a_replay(model: Any) -> None:
    """A forced run accepts what a replay of the same text accepts after the first token, which prefill yields."""
    speculator = Speculator.from_transformers(model, method="lookup", nodes=8)
    _, stats = force(speculator, PROMPT, OUTPUT)
    drafter = build_drafter("lookup", BuildContext(vocabulary=VOCABULARY, tokenizer="", memory_limit=1 << 20))
    result = replay(drafter, [recording(OUTPUT[1:], prompt=[*PROMPT.tolist(), OUTPUT[0]])], nodes=8)
    assert (stats.rounds, stats.tokens - 1) == (result.rounds, result.tokens)


class Curious(Scripted):
    """Asks for the target's top tokens and hidden states."""

    @property
    def needs(self) -> RequestedOutputs:
        return RequestedOutputs(top_k=3, hidden_layers=(-1,))

    def open(self, start: SessionRequest) -> Session:
        """Return a session that checks what it gets."""
        self.prompts.append(start.prompt.tolist())
        return CuriousSession(self)


class CuriousSession(ScriptedSession):
    """Checks that it gets none of them."""

    def observe(self, verified: Verified) -> None:
        assert verified.top_ids is None
        assert verified.top_logits is None
        assert verified.hidden is None
        super().observe(verified)


def test_drafters_are_shown_no_logits(model: Any) -> None:
    """Those of random weights would mislead them; everything else they get."""
    drafter = Curious(DraftTree.from_paths([[7, 8]], [0.5]))
    options = DraftingOptions(nodes=4)
    speculator = Speculator(model, None, drafter, method="x", verifier=SampleThenFollow(), options=options)
    ids, _ = force(speculator, PROMPT, OUTPUT)
    assert [token for tokens in drafter.seen for token in tokens] == ids == OUTPUT


def test_the_processor_forbids_nothing() -> None:
    """Prompt lookup asks which tokens are forbidden; forbidding all but one would reveal the text to it."""
    processor = ForcingProcessor(3, [7])
    scores = processor(torch.zeros(1, 3, dtype=torch.long), torch.ones(1, VOCABULARY))
    assert scores.argmax() == 7
    assert bool((scores >= 1).all())
    free = torch.arange(float(VOCABULARY))[None]
    assert torch.equal(processor(torch.zeros(1, 4, dtype=torch.long), free.clone()), free)


def test_ids_are_mapped_where_they_must_be() -> None:
    """Equal ids stay equal over all recordings, and more of them than the model has are refused."""
    small, large = recording([4, 5]), recording([900, 4, 900], prompt=[70])
    assert fit_vocabulary([small], 6)[1] is False
    (one, other), mapped = fit_vocabulary([small, large], 8)
    assert mapped
    assert (one.output.tolist(), other.output.tolist(), other.prompt.tolist()) == ([1, 2], [4, 1, 4], [3])
    with pytest.raises(UsageError, match="5 different token ids, the model has 4"):
        fit_vocabulary([small, large], 4)


@pytest.mark.parametrize("method", ["recycling", "logitspec", "draft-model", "opt-tree", "hf:assisted"])
def test_methods_that_need_the_true_model_are_refused(method: str) -> None:
    """Their acceptance would be that of nonsense."""
    with pytest.raises(UnsupportedError, match="without --forced"):
        check_forced(method)
    check_forced("mix")
