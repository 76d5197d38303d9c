"""Measures the pass latency on this device by draft size, and stores it as the starting point of sizing.

The file is in the user's cache folder, under a name derived from everything that affects the latency: the model's
shape, dtype, device, threads, the code of its linear layers, torch. Sizing corrects it in every round, so an outdated
file does no harm.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speculant.core.errors import FileError, UsageError
from speculant.core.folders import cache_folder
from speculant.core.model_engine import ModelEngine
from speculant.core.tree import DraftTree, Int32
from speculant.sizing.latency import measured_sizes
from speculant.sizing.step_cost import StepCost, read_step_cost

PREFIXES = (64, 512, 2048)
_MIN_ROUNDS = 3
_DRIFT = 256  # tokens that the cache may grow beyond the prefix while passes are timed


def step_cost_file(engine: ModelEngine) -> Path:
    """Return the file for the latency of a model's passes on its device.

    Raises:
        UsageError: its engine does not say on what the latency depends, so that none can be stored.
    """
    if not (facts := engine.latency_facts):
        raise UsageError(f"costs of passes on {engine.name} cannot be stored: it names no facts that they depend on.")
    own = [*facts, "rows of different tokens"]  # earlier files have passes over rows of one token
    identity = json.dumps(own, sort_keys=True, default=str).encode()
    return cache_folder() / f"step-cost-{hashlib.blake2b(identity, digest_size=8).hexdigest()}.json"


def stored_step_cost(engine: ModelEngine, *, maximum: int) -> StepCost | None:
    """Return what `speculant tune` measured for this model and device for up to `maximum` nodes, or None."""
    try:
        found = read_step_cost(step_cost_file(engine))
    except (FileError, UsageError, OSError):
        return None  # a missing or broken file only costs a few rounds of measuring
    return found if found.nodes[-1] >= maximum else None


def measure_step_cost(
    engine: ModelEngine,
    *,
    maximum: int,
    prefixes: Sequence[int] = PREFIXES,
    seconds: float = 15.0,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Time passes over drafts of up to `maximum` nodes.

    Sizes alternate, rising and falling: every pass follows one of similar size, as in decoding. A plain pass that
    always followed the largest one would be timed with cold caches.

    Args:
        engine: engine of the model.
        maximum: nodes of the largest draft.
        prefixes: tokens in the cache; prefixes that exceed the model's limit are skipped.
        seconds: time to spend per prefix; each size is timed at least three times.
        advance: called after each prefix.

    Returns:
        {"nodes": [P], "seconds": [P], "prefix", "by_prefix": [{"prefix", "seconds": [P], "rounds"}]}, medians; the
        first three are the curve at the middle prefix, as `read_step_cost` reads it.

    Raises:
        UsageError: no prefix leaves room for the draft.
    """
    sizes = measured_sizes(maximum)
    positions = engine.capabilities.positions
    taken = (1 + _MIN_ROUNDS) * len(sizes) + maximum + 1  # every pass leaves a token in the cache
    room = [prefix for prefix in prefixes if positions is None or prefix + taken <= positions]
    if not room:
        raise UsageError(
            f"the model's {positions} positions leave no room for {maximum} nodes after {min(prefixes)} tokens."
        )
    found = []
    for prefix in room:
        found.append(_at_prefix(engine, prefix, sizes, seconds))
        advance()
    middle = found[len(found) // 2]
    return {"nodes": sizes, "seconds": middle["seconds"], "prefix": middle["prefix"], "by_prefix": found}


def _at_prefix(engine: ModelEngine, prefix: int, sizes: list[int], seconds: float) -> dict[str, Any]:
    positions = engine.capabilities.positions
    samples: list[list[float]] = [[] for _ in sizes]
    with torch.no_grad():
        ids = _tokens(engine, prefix)
        cache = engine.open(torch.from_numpy(ids).long()[None].to(engine.device))
        cache.prefill()
        for size in sizes:
            _timed_pass(engine, cache, size)  # the first of each size allocates
        began = time.perf_counter()
        order = range(len(sizes))[::-1]
        while len(samples[0]) < _MIN_ROUNDS or time.perf_counter() - began < seconds:
            for place in order:
                samples[place].append(_timed_pass(engine, cache, sizes[place]))
            order = order[::-1]
            if cache.length > min(prefix + _DRIFT, (positions or math.inf) - len(sizes) - sizes[-1] - 1):
                break
    return {"prefix": prefix, "seconds": [float(np.median(times)) for times in samples], "rounds": len(samples[0])}


def _tokens(engine: ModelEngine, count: int) -> Int32:
    """Return distinct tokens, as in drafts: rows of one token would all select the same experts."""
    return np.random.default_rng(count).integers(0, engine.capabilities.vocabulary, count, np.int32)


def _timed_pass(engine: ModelEngine, cache: Any, nodes: int) -> float:
    above = np.arange(nodes, dtype=np.int32) - 1
    parents = above // 2 if engine.capabilities.trees else above
    tree = DraftTree(_tokens(engine, nodes), parents, np.ones(nodes, np.float32))
    began = time.perf_counter()
    result = engine.forward([(cache, 1, tree)])[0]
    engine.read([result.logits.argmax(-1)])  # as the sampler does: the pass ends when its choices are known
    cache.keep([0])
    return time.perf_counter() - began
