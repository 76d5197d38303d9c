"""Drafted, sampled and batched texts of the causal architectures of transformers are those of `generate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import cache_utils

from architecture_matrix.catalogue import names
from architecture_matrix.compare import examine
from architecture_matrix.table import page
from models import PHI3, TRANSFORMERS

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results" / "architectures.json"
SAMPLE = {  # one of each way in which masks, positions and caches are made
    "deepseek_v3": "trees",
    "doge": "plain",
    "gemma3_text": "trees",
    "gpt_neo": "chains",
    "llama4_text": "chains",
    "phi3 (rope: longrope)": "trees",
    "deepseek_v32": "trees",
    "deepseek_v4": "chains",
    "qwen3_5 (media)": "trees",
    "qwen3_next": "trees",
    "rwkv": "chains",
}
STATES = ("qwen3_5 (media)", "qwen3_next")
# Other fast tests compare texts of these, or of models with the same layers.
SLOW = ("deepseek_v4", "doge", "gemma3_text", "llama4_text", "phi3 (rope: longrope)", *STATES)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[PHI3] * ("phi3" in name) + [pytest.mark.slow] * (name in SLOW)) for name in SAMPLE],
)
def test_a_sample_of_architectures(name: str) -> None:
    """Guards losslessness where architectures differ most; `make test-slow` runs all of them."""
    if name not in names() or (name in STATES and not hasattr(cache_utils, "LinearAttentionLayer")):
        pytest.skip("this release of transformers has no such class, or keeps states in a cache of its own")
    found = examine(name, ("eager",))
    assert (found.verdict, found.mismatches) == (SAMPLE[name], [])
    assert (found.accepted > 10) == (found.verdict != "plain")


@pytest.mark.matrix
@pytest.mark.parametrize("name", names())
def test_every_architecture(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the table in the documentation, architecture by architecture."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = json.loads(RESULTS.read_text("utf-8"))["architectures"]
    found = examine(name)
    assert found.mismatches == []
    assert name not in known or found.verdict == known[name]["verdict"]


def test_the_table_in_the_documentation_is_that_of_the_results() -> None:
    """Guards against a page that somebody wrote by hand, and against results that nobody made a page of."""
    results = json.loads(RESULTS.read_text("utf-8"))
    if results["versions"]["transformers"] != str(TRANSFORMERS):
        pytest.skip("the results are those of another release, which has other architectures")
    assert (ROOT / "docs" / "architectures.md").read_text("utf-8") == page(results, names())
    assert all(not found["mismatches"] for found in results["architectures"].values())
