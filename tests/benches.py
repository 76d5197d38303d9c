"""Rows of a benchmark that was never run."""

from __future__ import annotations

from typing import Any

from speculant.bench.suite.rows import ResultRow


def row(method: str, **changes: Any) -> ResultRow:
    """Return a row of ten tokens in five seconds, one of them for the prompt."""
    values: dict[str, Any] = {
        "task": "t",
        "category": "c",
        "item": 0,
        "turn": 0,
        "temperature": 0.0,
        "trial": 0,
        "prompt_tokens": 4,
        "tokens": 10,
        "prefill_tokens": 1,
        "rounds": 9,
        "drafted": 0,
        "offered_by_depth": [],
        "accepted_by_depth": [],
        "seconds": 5.0,
        "prefill_seconds": 1.0,
        "draft_seconds": 1.0,
        "target_seconds": 2.0,
        "memory_bytes": None,
        "device_bytes": None,
        "identical": True,
        "divergence": None,
    }
    return ResultRow(**values | {"method": method} | changes)
