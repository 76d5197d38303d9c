"""A recorded output as an engine and a target."""

from __future__ import annotations

import numpy as np
import pytest

from speculant.core.drafter import SessionRequest
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError
from speculant.core.stats import Stats
from speculant.core.tree import DraftTree
from speculant.decoding.prefill import prefill
from speculant.decoding.sequence import Sequence
from speculant.decoding.step import DecodingComponents, step
from speculant.engines.recorded import RecordedCache, RecordedEngine, RecordedSampler
from speculant.registry import BuildContext, build_drafter, build_verifier
from speculant.sizing.fixed import FixedSizing

PROMPT, OUTPUT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1], [4, 1, 5, 9, 2, 7, 3, 1, 4]


def recorded(method: str, rows: list[int]) -> tuple[Sequence, DecodingComponents]:
    """Return a sequence that decodes the output, and the parts; `rows` gets the rows of each pass."""
    drafter = build_drafter(method, BuildContext(vocabulary=10))
    engine = RecordedEngine(vocabulary=10, on_pass=rows.append)
    parts = DecodingComponents(engine=engine, drafter=drafter, verifier=build_verifier(method), sizing=FixedSizing(4))
    cache = RecordedCache(len(PROMPT))
    start = SessionRequest(prompt=np.array(PROMPT, np.int32))
    return Sequence(cache, RecordedSampler(OUTPUT), start, Stats(method=method, prompt_tokens=len(PROMPT))), parts


@pytest.mark.parametrize("method", ["none", "suffix", "mix"])
def test_the_round_yields_the_output(method: str) -> None:
    """Guards replays: the round commits the recorded tokens, in fewer passes where drafts are right."""
    rows: list[int] = []
    sequence, parts = recorded(method, rows)
    prefill([sequence], parts, maximum=[None])
    while sequence.active:
        step([sequence], parts)
    assert sequence.sampler.tokens == OUTPUT
    assert sequence.error is None
    assert sequence.cache.length == len(PROMPT) + len(OUTPUT) - 1
    assert len(rows) == sequence.stats.rounds
    assert (len(rows) < len(OUTPUT) - 1) == (method != "none")


def test_what_a_recording_lacks_is_refused() -> None:
    """Guards drafters and rules that need a model: they get an error, not zeros."""
    with pytest.raises(UnsupportedError, match="hidden states"):
        RecordedEngine().forward([(RecordedCache(), 1, DraftTree.empty())], RequestedOutputs(hidden_layers=(0,)))
    with pytest.raises(UnsupportedError, match="distributions"):
        RecordedSampler(OUTPUT).distribution(0)
    with pytest.raises(UnsupportedError, match="single layers"):
        RecordedCache(1).reread(np.array([4], np.int32), [0])
