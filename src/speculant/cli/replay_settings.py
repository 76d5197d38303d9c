"""What one call of `speculant replay` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speculant.bench.replay.traces import Recording


class Order(str, Enum):
    """The order of requests."""

    FILE = "file"
    SHUFFLED = "shuffled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What is replayed and how; see the options of the command."""

    traces: Sequence[str]
    tokenizer: str | None
    methods: Sequence[str]
    settings: Sequence[str]
    nodes: tuple[int, ...]
    shapes: tuple[str, ...]
    unite: str
    keep_memory: bool
    memory_limit: int
    corpora: Sequence[str]
    bases: tuple[str, ...]
    order: Order
    seed: int
    limit: int | None
    step_cost: str | None
    by_category: bool
    json: str | None
    html: str | None
    jobs: int | None


@dataclass(frozen=True, slots=True)
class Trace:
    """A file's recordings, in the order of replay, under the name that the results give it."""

    name: str
    recordings: Sequence[Recording]
