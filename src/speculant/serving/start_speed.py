"""Measures the decoding speed at server startup, plain and with drafts, in about a second at most.

One text is decoded both ways, for a few dozen tokens or a few tenths of a second each. Drafts come from a new memory
above the same bases, so that nothing is learned from the text and a memory that already knows it does not flatter the
result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from speculant.core.drafter import Background
from speculant.core.errors import SpeculantError
from speculant.registry import METHODS, find_method
from speculant.serving.routing import can_route, new_memory
from speculant.serving.transcriber import hears

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator

logger = logging.getLogger(__name__)
PROMPT = "Once upon a time"
TOKENS = 48
SECONDS = 0.35  # a run ends with the round that exceeds this
SLOW = 20.0  # tokens per second below which drafts are not measured, since a few rounds of them would take seconds
FEW = 4  # tokens that a run must have for its speed to be reported
MEMORY = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSpeed:
    """Tokens per second of one text; `drafted` is None if it was not measured."""

    plain: float
    drafted: float | None = None


def measure_speed(speculator: Speculator, *, settings: Any = None) -> StartSpeed | None:
    """Return the speed of a short text; None if the model does not decode texts, or ends them too early.

    Args:
        speculator: the model; its drafter and memory are left unchanged.
        settings: settings of its method's drafter.
    """
    if hears(speculator) or speculator.tokenizer is None:
        return None
    try:
        return _measure(speculator, settings)
    except SpeculantError as error:  # a server without this figure is better than no server
        logger.info("the speed was not measured: %s", error)
        return None


def _measure(speculator: Speculator, settings: Any) -> StartSpeed | None:
    plain = _run(speculator, plain=True)
    if plain is None:
        return None
    if plain < SLOW or not speculator.engine.capabilities.drafts or not _can_measure_drafts(speculator):
        return StartSpeed(plain=plain)
    with _apart(speculator, settings):
        _run(speculator, plain=False, tokens=FEW)  # loads compiled code
        return StartSpeed(plain=plain, drafted=_run(speculator, plain=False))


def _can_measure_drafts(speculator: Speculator) -> bool:
    """Whether measuring drafts has no side effects: the method has no memory, or a new one can be created."""
    if can_route(speculator):
        return True
    kept = speculator.method not in METHODS or find_method(speculator.method).keeps_memory
    return speculator.method != "none" and not kept and not isinstance(speculator.drafter, Background)


@contextmanager
def _apart(speculator: Speculator, settings: Any) -> Iterator[None]:
    """Temporarily draft with a new drafter that has its own memory, if the method has a memory."""
    before = speculator.drafter
    if can_route(speculator):
        speculator.draft_with(new_memory(speculator, limit=MEMORY, settings=settings))
    try:
        yield
    finally:
        speculator.draft_with(before)


def _run(speculator: Speculator, *, plain: bool, tokens: int = TOKENS) -> float | None:
    """Return the tokens per second after the first token; None for a text that ends at once."""
    with speculator.batch(1) as batch:
        generation = batch.add(PROMPT, plain=plain, seed=0, temperature=0.0, max_new_tokens=tokens)
        first, begin, seconds = 0, 0.0, 0.0
        while len(batch) and seconds < SECONDS:
            batch.step()
            now, count = time.perf_counter(), len(generation.result.ids)
            if not first and count:
                first, begin = count, now
            seconds = now - begin if first else 0.0
        batch.remove(generation)
    made = len(generation.result.ids) - first
    return made / seconds if made >= min(FEW, tokens) - 1 and seconds > 0 else None
