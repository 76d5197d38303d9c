"""The proposer for vLLM without vLLM: its contract, what it refuses, and its memory."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from speculant.core.errors import UnsupportedError
from speculant.integrations.vllm import Proposer
from speculant.integrations.vllm_checks import check_version
from speculant.integrations.vllm_cpu import expand_batch_to_tokens, expands

LONGEST = 64


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put what the proposer imports of vLLM in its place; the CPU repair is tested with vLLM itself."""
    fake, platforms = ModuleType("vllm"), ModuleType("vllm.platforms")
    fake.__version__ = "0.32.0"  # type: ignore[attr-defined]
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    for name in ("METHOD", "MEMORY", "BASE", "CONFIG"):
        monkeypatch.delenv(f"SPECULANT_{name}", raising=False)


def config(**changes: Any) -> Any:
    """Return what is read of a VllmConfig."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=5, **{"rejection_sample_method": "standard", **changes.get("speculative", {})}
        ),
        model_config=SimpleNamespace(
            get_vocab_size=lambda: 500,
            max_model_len=LONGEST,
            skip_tokenizer_init=True,
            tokenizer="nowhere",
            hf_text_config=SimpleNamespace(eos_token_id=2),
        ),
        parallel_config=SimpleNamespace(
            **{"rank": 0, "pipeline_parallel_size": 1, "data_parallel_rank": 0, **changes.get("parallel", {})}
        ),
    )


def step(proposer: Proposer, texts: list[list[int]], fresh: list[int]) -> list[list[int]]:
    """Ask for drafts as vLLM's runner does."""
    tokens = np.zeros((8, LONGEST), np.int32)
    for i, text in enumerate(texts):
        tokens[i, : len(text)] = text
    lengths = np.array([len(text) for text in texts] + [0] * (8 - len(texts)), np.int32)
    sampled = [text[len(text) - count :] if count else [] for text, count in zip(texts, fresh, strict=True)]
    return proposer.propose(sampled, lengths, tokens, slot_mappings=None, something_new=1)


def test_the_contract() -> None:
    """A list for each row, empty while a prompt is read, at most k and what fits the model's length."""
    proposer = Proposer(config())
    proposer.load_model("model", anything=1)
    text = [*range(10, 30)] * 3
    found = step(proposer, [text[:50], text[:10], text[:58], [*text, 10, 11, 12]], [1, 0, 1, 1])
    assert found[0] == text[50:55]
    assert found[1] == []
    assert len(found[2]) <= 5
    assert found[3] == []  # 63 of 64 tokens: the next one is the last
    assert all(type(token) is int for row in found for token in row)
    proposer.close()


def test_near_the_models_length() -> None:
    """A pass commits one token more than it accepts, and all must fit."""
    proposer = Proposer(config())
    text = [*range(10, 30)] * 3
    for length in (56, 58, 60, 62):
        assert len(step(proposer, [text[:60][:length] + [10] * (length - 60)], [1])[0]) == min(5, 63 - length)


def test_ranks_and_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of each replica saves, to a file of its own; every rank begins with it."""
    monkeypatch.setenv("SPECULANT_MEMORY", str(tmp_path / "m.speculant"))
    text = list(range(100, 130))
    for parallel in ({"rank": 1}, {"rank": 0}, {"rank": 0, "data_parallel_rank": 1}):
        proposer = Proposer(config(parallel=parallel))
        for end in range(5, 30):
            step(proposer, [text[:end]], [1])
        proposer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m-1.speculant", "m.speculant"]
    again = Proposer(config(parallel={"rank": 1}))
    assert step(again, [text[10:20]], [1])[0] == text[20:25]


@pytest.mark.parametrize("version", ["0.22.0", "0.32.0", "0.32.1.dev3+cpu", "0.33.0"])
def test_versions(version: str) -> None:
    """Those in the range are accepted."""
    check_version(version, allow_untested=False)


@pytest.mark.parametrize("version", ["0.21.3", "0.34.0", "1.0", "dev"])
def test_other_versions(version: str) -> None:
    """Others are refused with what was tested and how to override."""
    with pytest.raises(UnsupportedError, match=r"0.22 up to.*0.34.*SPECULANT_ALLOW_UNTESTED"):
        check_version(version, allow_untested=False)
    check_version(version, allow_untested=True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"speculative": {"rejection_sample_method": "synthetic"}}, "not lossless"),
        ({"speculative": {"rejection_sample_method": "fly"}}, "not lossless"),
        ({"speculative": {"num_speculative_tokens_per_batch_size": [(1, 8, 3)]}}, "DRAFTED_PER_STEP"),
        ({"parallel": {"pipeline_parallel_size": 2}}, "tensor parallelism"),
    ],
)
def test_refusals(changes: dict[str, Any], says: str) -> None:
    """What would change the output or fail later is refused at the start."""
    with pytest.raises(UnsupportedError, match=says):
        Proposer(config(**changes))


def test_lossy_acceptance_has_no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    """Untested may be tried, lossy may not."""
    monkeypatch.setenv("SPECULANT_ALLOW_UNTESTED", "1")
    with pytest.raises(UnsupportedError, match="not lossless"):
        Proposer(config(speculative={"rejection_sample_method": "synthetic"}))
    Proposer(config(parallel={"pipeline_parallel_size": 2}))


def test_expansion_of_sampling_parameters() -> None:
    """What replaces vLLM's function does what its documentation says, and a broken one is recognised."""
    assert expands(expand_batch_to_tokens)
    assert not expands(lambda x, _ends, count, **_replaced: x.new_zeros(count))
