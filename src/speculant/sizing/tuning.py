"""What a target pass costs on this device, measured once and kept for sizing to begin with.

The file lies in the user's cache folder, under a name made from everything that the cost depends on: the model's
shape, dtype, device, threads, the code of its linear layers, torch. `sizing` corrects it in every round, so an old one
does no harm.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from speculant.core.errors import FileError, UsageError
from speculant.core.folders import cache_folder
from speculant.core.tree import DraftTree
from speculant.engines.hf.cpu.accelerate import Acceleration
from speculant.engines.hf.cpu.build import processor
from speculant.engines.hf.target import TransformersTarget
from speculant.sizing.latency import SIZES
from speculant.sizing.step_cost import StepCost, read_step_cost

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator

PREFIXES = (64, 512, 2048)
_NOT_THE_SHAPE = {"_name_or_path", "transformers_version", "architectures"}
_LEAST_ROUNDS = 3
_DRIFT = 256  # tokens by which the cache may outgrow the prefix while passes are timed


def step_cost_file(model: Any, fast: Acceleration) -> Path:
    """Return where the cost of a model's passes on its device is kept."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in _NOT_THE_SHAPE}
    device = model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else [device.type, processor()]
    attention = getattr(model.config, "_attn_implementation", None)
    facts = [
        config,
        attention,
        str(model.dtype),
        name,
        torch.get_num_threads(),
        *fast.settings(),
        torch.__version__,
    ]
    identity = json.dumps(facts, sort_keys=True, default=str).encode()
    return cache_folder() / f"step-cost-{hashlib.blake2b(identity, digest_size=8).hexdigest()}.json"


def stored_step_cost(model: Any, fast: Acceleration, *, most: int) -> StepCost | None:
    """Return what `speculant tune` found for this model and device for up to `most` nodes, or None."""
    try:
        found = read_step_cost(step_cost_file(model, fast))
    except (FileError, OSError):
        return None  # no cache file, or a broken one, costs a few rounds of measuring, not the request
    return found if found.nodes[-1] >= most else None


def measure_step_cost(
    speculator: Speculator,
    *,
    most: int,
    prefixes: Sequence[int] = PREFIXES,
    seconds: float = 15.0,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Time passes over drafts of up to `most` nodes, sizes taking turns.

    Args:
        speculator: whose model is run.
        most: nodes of the largest draft.
        prefixes: tokens in the cache; those that the model has no room for are left out.
        seconds: to spend per prefix; each size is timed three times at least.
        advance: is called after each prefix.

    Returns:
        {"nodes": [P], "seconds": [P], "prefix", "by_prefix": [{"prefix", "seconds": [P], "rounds"}]}, medians; the
        first three are the curve at the middle prefix, as `read_step_cost` reads it.

    Raises:
        UsageError: no prefix leaves room for the draft.
    """
    sizes = [size for size in SIZES if size < most] + [most]
    positions = speculator.abilities.positions
    taken = (1 + _LEAST_ROUNDS) * len(sizes) + most + 1  # every pass leaves a token in the cache
    room = [prefix for prefix in prefixes if positions is None or prefix + taken <= positions]
    if not room:
        raise UsageError(
            f"the model's {positions} positions leave no room for {most} nodes after {min(prefixes)} tokens."
        )
    found = []
    for prefix in room:
        found.append(_at_prefix(speculator, prefix, sizes, seconds))
        advance()
    middle = found[len(found) // 2]
    return {"nodes": sizes, "seconds": middle["seconds"], "prefix": middle["prefix"], "by_prefix": found}


def _at_prefix(speculator: Speculator, prefix: int, sizes: list[int], seconds: float) -> dict[str, Any]:
    model, positions = speculator.model, speculator.abilities.positions
    ids = torch.ones((1, prefix), dtype=torch.long, device=model.device)
    times: list[list[float]] = [[] for _ in sizes]
    with torch.no_grad():
        target = TransformersTarget(model, speculator.abilities, ids, fast=speculator.fast)
        target.prefill()
        for size in sizes:
            _timed_pass(target, size)  # the first of each size allocates
        began = time.perf_counter()
        while len(times[0]) < _LEAST_ROUNDS or time.perf_counter() - began < seconds:
            for size, met in zip(sizes, times, strict=True):
                met.append(_timed_pass(target, size))
            if target.cached > min(prefix + _DRIFT, (positions or math.inf) - len(sizes) - sizes[-1] - 1):
                break
    return {"prefix": prefix, "seconds": [float(np.median(met)) for met in times], "rounds": len(times[0])}


def _timed_pass(target: TransformersTarget, nodes: int) -> float:
    above = np.arange(nodes, dtype=np.int32) - 1
    parents = above // 2 if target.abilities.trees else above
    tree = DraftTree(np.ones(nodes, np.int32), parents, np.ones(nodes, np.float32))
    began = time.perf_counter()
    logits = target.verify(1, tree)
    logits.argmax(-1).tolist()  # as the sampler does: the pass is over when its choices are known
    target.commit([])
    return time.perf_counter() - began
