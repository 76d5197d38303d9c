"""What one call of `speculant bench` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speculant.cli.options import Loading

TRIALS, FORCED_TRIALS = 3, 1
NEW_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is timed and how; see the options of the command."""

    loading: Loading
    tasks: str | None
    forced: Sequence[str]
    tokenizer: str | None
    config: str | None
    data: str | None
    limit: int | None
    growth: bool
    max_new_tokens: int | None
    methods: str | None
    drafter: str | None
    draft_model: str | None
    head: str | None
    settings: Sequence[str]
    nodes: int | str | None
    memory_limit: int
    bases: Sequence[str]
    temperature: str
    seed: int
    batch: str
    trials: int | None
    inflate: str | None
    out: str
    restart: bool
