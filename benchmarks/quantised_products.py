"""Time products of quantised matrices before and after a change of the compiled code, alternating in one process.

The matrices are those of a shape's first layers, with random values in the kernels' layout for each kind of weights.
Products before the change run the sources of an older revision, compiled here with the flags of the current one. Each
turn times both, one after the other; both must give the same bits. The result is written under `products` in FILE,
which may hold others, as those of cpu_quantised.py.

    git archive REVISION src/speculant/engines/hf/cpu | tar x -C OLD
    OMP_NUM_THREADS=1 python benchmarks/quantised_products.py $SHAPE --before OLD/src/speculant/engines/hf/cpu -o FILE
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from float_passes import compiled
from quantised_operators import product_shapes
from speculant.bench.systems.random_weights import read_shape
from speculant.engines.hf.cpu.build import load_native
from speculant.engines.hf.cpu.compiling import FLAGS, NATIVE
from speculant.engines.hf.quantized import products
from speculant.engines.hf.quantized.weight import GroupedValues, GroupScales, QuantizedWeight, pack

PRODUCTS = 7  # of a layer
KINDS: dict[str, dict[str, Any]] = {
    "8 bits in groups of 32 (q8_0)": {"offset": 128},
    "5 bits in groups of 32, with minima": {"largest": 31, "minima": True},
    "5 bits in groups of 32 (q5_0)": {"largest": 31, "offset": 16},
    "6 bits in groups of 16": {"largest": 63, "offset": 32, "group": 16},
    "4 bits in groups of 32 (q4_0)": {"bits": 4, "largest": 15, "offset": 8},
    "4 bits in groups of 32, with minima": {"bits": 4, "largest": 15, "minima": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", type=Path, help="config.json of the shape, or its folder")
    parser.add_argument("--before", type=Path, required=True, help="folder of an older revision's C++ sources")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", default="1,2,3,4,5,6,8,16,32")
    parser.add_argument("--turns", type=int, default=11)
    args = parser.parse_args()
    torch.set_num_threads(1)
    libraries = {"before": compiled(args.before, [*FLAGS, *NATIVE]), "after": load_native()}
    shapes = product_shapes(read_shape(args.shape))[: PRODUCTS * args.layers]
    rows = [int(each) for each in args.rows.split(",")]
    found: dict[str, Any] = {
        "what": f"products of {args.layers} layers of {args.shape.name}, one thread; milliseconds of thread time, "
        f"medians of {args.turns} in turns in one process; the results are the same to the last bit"
    }
    for kind, form in KINDS.items():
        found[kind] = measure(libraries, [random_weight(outs, k, **form) for outs, k in shapes], rows, args.turns)
        print(kind, found[kind], flush=True)
    report = json.loads(args.out.read_text()) if args.out.exists() else {}
    args.out.write_text(json.dumps(report | {"products": found}, indent=1) + "\n")


def random_weight(
    outs: int, k: int, *, bits: int = 8, largest: int = 255, offset: int = 0, group: int = 32, minima: bool = False
) -> QuantizedWeight:
    """Return a matrix of random values up to `largest`, with half-precision scales; the rest as in `GroupedValues`."""

    def numbers() -> GroupScales:
        return GroupScales(numbers=(torch.rand(outs, -(-k // group)) / 1000).half())

    values = torch.randint(0, largest + 1, (outs, k), dtype=torch.uint8)
    form: dict[str, Any] = {"bits": bits, "group": group, "offset": offset, "largest": largest}
    return pack(GroupedValues(values=values, scales=numbers(), minima=numbers() if minima else None, **form))


def measure(
    libraries: Mapping[str, ctypes.CDLL], weights: Sequence[QuantizedWeight], rows: Sequence[int], turns: int
) -> dict[int, dict[str, float]]:
    """Return the milliseconds of all products, by rows and library.

    Raises:
        RuntimeError: the libraries' results differ.
    """
    inputs = {k: torch.randn(max(rows), k) for k in {weight.k for weight in weights}}
    found = dict[int, dict[str, float]]()
    for count in rows:
        given = [inputs[weight.k][:count] for weight in weights]
        taken: dict[str, list[float]] = {name: [] for name in libraries}
        for turn in range(turns + 1):
            outputs = []
            for name, library in libraries.items():
                with patch.object(products, "native", lambda library=library: library):
                    began = time.thread_time()
                    outputs.append([products.multiply(weight, x) for weight, x in zip(weights, given, strict=True)])
                    taken[name] += [time.thread_time() - began] if turn else []  # the first turn is warm-up
            if not all(torch.equal(one, other) for one, other in zip(*outputs, strict=True)):
                raise RuntimeError(f"the results of {count} rows differ")
        found[count] = {name: round(float(np.median(times)) * 1e3, 2) for name, times in taken.items()}
    return found


if __name__ == "__main__":
    main()
