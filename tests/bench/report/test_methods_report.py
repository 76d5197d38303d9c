"""The table of measured methods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from methods_report import methods_table

ROOT = Path(__file__).parents[3]
RESULTS = [ROOT / "benchmarks" / "results" / f"methods-{target}.json" for target in ("bundled", "inflated")]


def result(target: str, methods: dict[str, Any]) -> dict[str, Any]:
    """Return what is measured of one target."""
    conditions = {
        "target": target,
        "parameters": 5_500_000,
        "dtype": "float32",
        "threads": 1,
        "requests": 50,
        "prompt_tokens": 32,
        "max_new_tokens": 96,
    }
    return {"conditions": conditions, "methods": methods}


def figures(speedup: float, *, draft: float | None = 0.25, identical: int = 50, **more: Any) -> dict[str, Any]:
    """Return the figures of one method."""
    return {
        "mat": 1.5,
        "speedup": speedup,
        "time_share": {"draft": draft, "target": None, "rest": None},
        "identical": identical,
        "compared": 50,
        **more,
    }


def test_methods_side_by_side() -> None:
    """Slower methods, other texts and missing measurements are visible, and so are the conditions."""
    bundled = result("bundled", {"mix": figures(1.3), "opt-tree": figures(0.98, identical=49, draft_model="small")})
    inflated = result("inflated", {"opt-tree": figures(2.0), "pearl": {"skipped": "it needs a draft model."}})
    lines = methods_table([bundled, inflated]).splitlines()
    assert lines[0].split(" | ")[1:3] == ["bundled: MAT", "speed-up"]
    assert lines[2] == "| `mix` | 1.50 | 1.30 | 25% | 50/50 | - | - | - | - |"
    assert lines[3] == "| `opt-tree` | 1.50 | 0.98 (slower) | 25% | 49/50 | 1.50 | 2.00 | 25% | 50/50 |"
    assert "bundled: 5.5 million parameters, float32, 1 thread, 50 prompts of 32 tokens" in lines[5]
    assert lines[5].endswith("greedy, draft model small.")
    assert lines[-1] == "`pearl` was not run on inflated: it needs a draft model."


def test_lossy_methods_are_named() -> None:
    """Their texts are not compared, and drafting time may be unknown."""
    table = methods_table([result("bundled", {"contrastive": figures(1.1, draft=None, compared=0)})])
    assert "| `contrastive` | 1.50 | 1.10 | - | lossy |" in table


@pytest.mark.skipif(not all(path.exists() for path in RESULTS), reason="the methods have not been measured")
def test_the_documentation_holds_the_measured_table() -> None:
    """Guards benchmarks/methods.md against figures without raw data."""
    table = methods_table([json.loads(path.read_text("utf-8")) for path in RESULTS])
    assert table in (ROOT / "benchmarks" / "methods.md").read_text("utf-8")
