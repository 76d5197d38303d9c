"""Times of the kernels on a model's own weights, measured once and stored in the user's cache folder.

Kernels take turns, and the minimum of a few trials is used, so other programs disturb little. Weights are read as in a
pass: from memory, if the model has enough of a shape to fill the caches. The file's name is derived from everything
that the times depend on: shapes, dtype, threads, the processor, the compiled code and the version of torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from speculant.core.folders import cache_folder
from speculant.engines.hf.cpu.build import processor, source_digest
from speculant.engines.hf.cpu.kernel_table import ROW_COUNTS, Shape, Times
from speculant.engines.hf.cpu.products import Kernel, Products, pack

MIN_TOTAL = 1 << 25  # minimum weights of a model worth measuring
MAX_OUTS = 4096  # maximum rows of a weight multiplied at a time
BYTES = 48 << 20  # weights per trial: more than most caches hold
OPERATIONS = 1 << 28  # maximum multiplications per trial
MIN_TRIALS, MAX_TRIALS = 3, 12
STABLE = 0.97  # trials end when no kernel takes less than this share of its previous time
HOPELESS = 2.5  # a kernel this many times slower than the fastest is not tried again


def kernel_times(modules: Iterable[nn.Linear], products: Products, *, minimum: int) -> dict[Shape, Times]:
    """Return the times of all shapes of at least `minimum` weights, from the cache folder or measured now.

    Args:
        modules: linear layers of one dtype.
        products: the kernels.
        minimum: minimum weights of a layer to measure.
    """
    weights: dict[Shape, list[Tensor]] = defaultdict(list)
    for module in modules:
        if module.weight.numel() >= minimum:
            outs, k = module.weight.shape
            weights[outs, k].append(module.weight.detach())
    total = sum(len(each) * shape[0] * shape[1] for shape, each in weights.items())
    if total < MIN_TOTAL:
        return {}
    dtype = next(iter(weights.values()))[0].dtype
    path = _file(weights, dtype, products)
    found = _read(path, weights, products.available(dtype))
    if found is None:
        found = {}
        with tqdm(total=len(weights) * len(ROW_COUNTS), desc="measuring kernels", leave=False, disable=None) as bar:
            for shape, each in weights.items():
                found[shape] = _measure(each, products, bar)
        _write(path, found)
    return found


@torch.no_grad()
def _measure(weights: Sequence[Tensor], products: Products, bar: tqdm) -> Times:
    """Return the seconds of each kernel at each of ROW_COUNTS, for weights of one shape."""
    dtype, (outs, k) = weights[0].dtype, weights[0].shape
    pieces = [piece for weight in weights for piece in torch.split(weight, MAX_OUTS)]
    pieces = [piece for piece in pieces if len(piece) == len(pieces[0])]
    size = pieces[0].numel()
    pieces = pieces[: max(BYTES // (size * dtype.itemsize), 1)]
    kernels = products.available(dtype)
    copies = [pack(piece, 16) for piece in pieces] if "packed" in kernels else None
    times: dict[Kernel, list[float]] = {kernel: [] for kernel in kernels}
    for rows in ROW_COUNTS:
        x = torch.randn(rows, k).to(dtype)
        count = min(max(OPERATIONS // (rows * size), 1), len(pieces))
        minimum = dict.fromkeys(kernels, math.inf)
        for trial in range(MAX_TRIALS):
            fastest, before = min(minimum.values()), dict(minimum)
            for kernel in kernels:
                if trial and minimum[kernel] > HOPELESS * fastest:
                    continue
                began = time.perf_counter()
                for place in range(count):
                    products.multiply(kernel, x, pieces[place], None, copies[place] if copies else None)
                minimum[kernel] = min(minimum[kernel], (time.perf_counter() - began) / count)
            if trial + 1 >= MIN_TRIALS and all(minimum[each] >= STABLE * before[each] for each in kernels):
                break
        for kernel, seconds in minimum.items():
            times[kernel].append(seconds * outs / len(pieces[0]))
        bar.update()
    # A product that takes longer with fewer rows was disturbed by another program.
    return {kernel: np.minimum.accumulate(each[::-1])[::-1].tolist() for kernel, each in times.items()}


def _file(shapes: Iterable[Shape], dtype: torch.dtype, products: Products) -> Path | None:
    code = [source_digest(), Path(products.native._name).name]  # a packaged library differs from one compiled here
    facts = [sorted(shapes), str(dtype), torch.get_num_threads(), processor(), *code, torch.__version__]
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()
    with contextlib.suppress(OSError):
        return cache_folder() / f"kernels-{digest}.json"
    return None  # without a home folder, times are measured each time


def _read(path: Path | None, shapes: Iterable[Shape], kernels: Sequence[Kernel]) -> dict[Shape, Times] | None:
    """Read the times of a file; None if it is missing or incomplete."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8")) if path else {}
        found: dict[Shape, Times] = {
            shape: {kernel: [float(each) for each in stored[_name(shape)][kernel]] for kernel in kernels}
            for shape in shapes
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None
    complete = all(len(each) == len(ROW_COUNTS) for times in found.values() for each in times.values())
    return found if complete else None


def _write(path: Path | None, times: dict[Shape, Times]) -> None:
    """Store times; an unwritable folder only means measuring again."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with open(handle, "w", encoding="utf-8") as file:
            json.dump({_name(shape): each for shape, each in times.items()}, file, indent=1)
        os.replace(name, path)


def _name(shape: Shape) -> str:
    return f"{shape[0]}x{shape[1]}"
