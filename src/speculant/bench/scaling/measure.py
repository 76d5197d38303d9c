"""Measures how the time and memory of a round scale with the length of the text and the number of nodes.

A pass must read the keys and values of the whole text, so its attention grows with the length; nothing else has to. For
lengths up to 8192 tokens and drafts of up to 256 nodes this times real passes of the model, the attention inside such
passes, and a drafter that has read the same text, alternating between sizes; each pass is rolled back, so that all see
the same text. Outputs do not matter, so weights may be random. The text is a synthetic language in which each token has
few successors, so that drafts reach the requested size.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from speculant.api.speculator import Speculator
from speculant.bench.scaling.peak_memory import PeakMemory
from speculant.core.drafter import EMPTY_PATH, Budget, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import DraftTree, Int32
from speculant.engines.hf.cache import held_bytes
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.opening import AnySequence

PREFIXES = (512, 1024, 2048, 4096, 8192)
NODES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
FEW_NODES = (0, 8, 64)  # at all lengths
REPEATS = 5

Clock = Callable[[], float]


@dataclass(slots=True)
class _Samples:
    """Seconds of each repeat of one size."""

    passes: list[float] = field(default_factory=list)
    attention: list[float] = field(default_factory=list)
    rests: list[float] = field(default_factory=list)
    drafting: list[float] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)


def measure_scaling(
    make: Callable[[], Speculator], *, repeats: int = REPEATS, advance: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Return measurements of rounds at growing lengths and sizes.

    Args:
        make: returns a speculator with the model and drafter to measure, and an empty memory.
        repeats: number of timings of each size; medians are kept.
        advance: called after each of the lengths of `lengths_of`.

    Returns:
        {"drafter", "repeats", "clock", "base_bytes", "prefixes": [...], "rounds": [...]}. A prefix has "prefix",
        "prefill_seconds", "learn_seconds", "cache_bytes", "drafter_bytes" and "prefill_peak_bytes"; a round has
        "prefix", "nodes", "drafted", "pass_seconds", of that "attention_seconds" and "rest_seconds" (None where they
        cannot be separated), "draft_seconds" and "peak_bytes". Peaks are beyond `base_bytes`, what was held before;
        None where the system does not report them.

    Raises:
        UsageError: the model has too few positions.
    """
    speculator = make()
    lengths = lengths_of(speculator.engine.capabilities.positions)
    clock_name, clock = clock_of(speculator.engine.device)
    peak = PeakMemory(speculator.engine.device)
    peak.reset()
    base = peak.read()
    prefixes, rounds = [], []
    with torch.no_grad():
        for number, length in enumerate(lengths):
            sizes = NODES if number == 0 else FEW_NODES
            prefix, found = _at_length(make(), length, sizes, repeats, clock, peak, base)
            prefixes.append(prefix)
            rounds += found
            advance()
    return {
        "drafter": speculator.method,
        "repeats": repeats,
        "clock": clock_name,
        "base_bytes": base,
        "prefixes": prefixes,
        "rounds": rounds,
    }


def lengths_of(positions: int | None) -> list[int]:
    """Return the lengths that fit in a model's positions; the longest leaves room for the largest draft.

    Raises:
        UsageError: there are fewer than two.
    """
    maximum = PREFIXES[-1] if positions is None else positions - NODES[-1] - 1
    found = sorted({min(each, maximum) for each in PREFIXES if each < 1.5 * maximum})
    if len(found) < 2 or found[0] < PREFIXES[0]:
        raise UsageError(
            f"scaling is measured from {PREFIXES[0]} tokens with {NODES[-1]} nodes after them; the model has "
            f"{positions} positions. Leave --growth out, or use a model with {2 * PREFIXES[0]} positions or more."
        )
    return found


def _at_length(
    speculator: Speculator,
    length: int,
    sizes: Sequence[int],
    repeats: int,
    clock: Clock,
    peak: PeakMemory,
    base: int | None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    model, engine = speculator.model, speculator.engine
    if not isinstance(engine, HFEngine):
        raise UnsupportedError("how cost scales is measured on models of transformers; leave --growth out.")
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    text = _text(length + 1 + (1 + repeats) * len(sizes), vocabulary)
    began = clock()
    session = speculator.drafter.open(SessionRequest(prompt=text[:length]))
    learned = clock() - began
    ids = torch.from_numpy(text[:length].astype(np.int64))[None].to(model.device)
    target = engine.open(ids)
    peak.reset()
    began = clock()
    first = target.prefill()
    assert first is not None
    first.logits.argmax(-1).tolist()
    prefilled = clock() - began
    prefix = {
        "prefix": length,
        "prefill_seconds": prefilled,
        "learn_seconds": learned,
        "prefill_peak_bytes": _above(peak.read(), base),
    }
    drafting = _Drafting(speculator.drafter.needs, engine, target, session, text[length:], clock)
    samples_of = {size: _Samples() for size in sizes}
    peaks = {}
    for size in sizes:  # the first of each size allocates, and gives the peak memory
        peak.reset()
        _pass(engine, target, size, clock)
        peaks[size] = _above(peak.read(), base)
        drafting.round(size)
    for _ in range(repeats):
        for size, samples in samples_of.items():
            _measure(engine, target, size, samples, clock)
            seconds, drafted = drafting.round(size)
            samples.drafting.append(seconds)
            samples.drafted.append(drafted)
    session.close()
    prefix["cache_bytes"] = _cache_bytes(target)
    prefix["drafter_bytes"] = getattr(speculator.drafter, "memory_bytes", None)
    rounds = [
        {
            "prefix": length,
            "nodes": size,
            "drafted": int(median(samples.drafted)),
            "pass_seconds": median(samples.passes),
            "attention_seconds": median(samples.attention) if samples.attention else None,
            "rest_seconds": median(samples.rests) if samples.rests else None,
            "draft_seconds": median(samples.drafting),
            "peak_bytes": peaks[size],
        }
        for size, samples in samples_of.items()
    ]
    return prefix, rounds


class _Drafting:
    """Rounds of a session along a text, with nothing accepted."""

    def __init__(
        self,
        needs: RequestedOutputs,
        engine: HFEngine,
        target: AnySequence,
        session: Session,
        text: Int32,
        clock: Clock,
    ) -> None:
        self._needs, self._engine = needs, engine
        self._target, self._session, self._text = target, session, text
        self._clock, self._at = clock, 0

    def round(self, nodes: int) -> tuple[float, int]:
        """Draft `nodes` nodes and learn the next token; return the seconds of both and the number drafted."""
        began = self._clock()
        budget = Budget(nodes=nodes, depth=self._target.depth, trees=self._engine.capabilities.trees)
        tree = self._session.propose(budget) if nodes else DraftTree.empty()
        proposed = self._clock() - began
        ids, logits = None, None
        if self._needs.top_k:
            result = self._engine.forward([(self._target, 1, tree)], self._needs)[0]
            ids, logits = result.top_ids, result.top_logits
            result.logits.argmax(-1).tolist()  # waits for the requested outputs
            self._target.rollback()
        token = self._text[self._at : self._at + 1]
        self._at += 1
        seen = Verified(tree=tree, path=EMPTY_PATH, tokens=token, top_ids=ids, top_logits=logits)
        began = self._clock()
        self._session.observe(seen)
        return proposed + self._clock() - began, len(tree)


def _measure(engine: HFEngine, target: AnySequence, nodes: int, samples: _Samples, clock: Clock) -> None:
    """Time a pass and the attention in it; on an accelerator, where timing attention adds waits, in separate passes."""
    separate = engine.model.device.type != "cpu"
    seconds = _pass(engine, target, nodes, clock) if separate else 0.0
    with _attention_watched(engine.model, clock) as attention:
        watched = _pass(engine, target, nodes, clock)
    seconds = seconds if separate else watched
    samples.passes.append(seconds)
    samples.attention += attention
    samples.rests += [max(0.0, seconds - each) for each in attention]


def _pass(engine: HFEngine, target: AnySequence, nodes: int, clock: Clock) -> float:
    """Run a pass over a root and `nodes` nodes and roll it back; return its seconds."""
    above = np.arange(nodes, dtype=np.int32) - 1
    tree = DraftTree(
        np.ones(nodes, np.int32), above // 2 if engine.capabilities.trees else above, np.ones(nodes, np.float32)
    )
    began = clock()
    result = engine.forward([(target, 1, tree)])[0]
    result.logits.argmax(-1).tolist()  # as a sampler does: the pass ends when its choices are known
    seconds = clock() - began
    target.rollback()
    return seconds


@contextlib.contextmanager
def _attention_watched(model: Any, clock: Clock) -> Iterator[list[float]]:
    """Yield a list that is filled with the seconds of all attention inside; empty if it cannot be separated."""
    name, found = model.config._attn_implementation, list[float]()
    plain = ALL_ATTENTION_FUNCTIONS.get(name)
    if plain is None:
        yield found
        return
    times: list[float] = []

    def time_call(*args: Any, **options: Any) -> Any:
        began = clock()
        result = plain(*args, **options)
        times.append(clock() - began)
        return result

    ALL_ATTENTION_FUNCTIONS[name] = time_call
    try:
        yield found
    finally:
        ALL_ATTENTION_FUNCTIONS[name] = plain
    if times:
        found.append(sum(times))


def clock_of(device: torch.device) -> tuple[str, Clock]:
    """Return a clock and its name.

    "cpu" is the CPU time of a single thread, which other load on the machine does not affect. With several threads, or
    on an accelerator, whose queued work is awaited first, the clock is "wall".
    """
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return "cpu", time.thread_time
    if device.type != "cuda":
        return "wall", time.perf_counter

    def read_clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return "wall", read_clock


def _cache_bytes(target: AnySequence) -> int:
    """Return the size of the cache's buffers, including unused rows."""
    return 0 if target.cache is None else held_bytes(target.cache)


def _text(length: int, vocabulary: int) -> Int32:
    """Return Int32[length] of a language in which each token has few successors."""
    random = np.random.default_rng(0)
    text = random.zipf(1.3, length) % vocabulary
    for i in np.flatnonzero(random.random(length) < 0.7):
        text[i] = (text[i - 1] * 31 + text[i] % 3) % vocabulary
    return text.astype(np.int32)


def _above(peak: int | None, base: int | None) -> int | None:
    return None if peak is None or base is None else max(0, peak - base)
