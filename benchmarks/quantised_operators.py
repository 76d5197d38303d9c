"""Compare PyTorch's own operators for quantised weights with Speculant's, on the matrix products of a shape.

Measures the time of all products of a pass, without attention and norms, for 1 to 32 rows. Each layer has its own
matrices, so that weights come from memory as in a pass. Also checks whether the result of a row is independent of the
other rows and of their number, without which drafts would change the text.

    python benchmarks/quantised_operators.py $SHAPE -o benchmarks/results/quantised-operators.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.bench.systems.random_weights import read_shape
from speculant.cli.env import environment
from speculant.engines.hf.quantized.products import multiply
from speculant.engines.hf.quantized.weight import GroupedValues, GroupScales, pack

ROWS, SAME_ROWS = (1, 2, 4, 8, 16, 32), (2, 3, 4, 5, 8, 16, 32)
GROUP = 32
Product = Callable[[Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", type=Path, help="config.json of the shape, or its folder")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--operators", default=",".join(OPERATORS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = read_shape(args.shape)
    report: dict[str, Any] = {"environment": environment(), "shape": args.shape.name, "operators": {}}
    for name in args.operators.split(","):
        try:
            report["operators"][name] = measure(config, *OPERATORS[name], args.rounds)
        except (RuntimeError, NotImplementedError) as error:
            report["operators"][name] = {"refused": str(error).splitlines()[0]}
        print(name, report["operators"][name], flush=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


def measure(config: Any, make: Callable[[int, int], Product], dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Return milliseconds of all products by rows, and the numbers of rows that change a row's result."""
    torch.manual_seed(0)
    shapes = product_shapes(config)
    products = [(make(outs, k), k) for outs, k in shapes]
    inputs = {k: torch.randn(max(ROWS), k, dtype=dtype) for _, k in shapes}
    changed = set[int]()
    for product, k in products[:7]:  # one layer
        alone = torch.cat([product(row[None]) for row in inputs[k]])
        changed |= {rows for rows in SAME_ROWS if not torch.equal(product(inputs[k][:rows]), alone[:rows])}
    taken: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(rounds):
        for rows, times in taken.items():
            began = time.thread_time()
            for product, k in products:
                product(inputs[k][:rows])
            times.append(time.thread_time() - began)
    return {
        "milliseconds": {rows: float(np.median(times)) * 1e3 for rows, times in taken.items()},
        "rows_that_change_a_row": sorted(changed),
    }


def product_shapes(config: Any) -> list[tuple[int, int]]:
    """Return the output and input sizes of all products of a pass."""
    hidden, inner = config.hidden_size, config.intermediate_size
    size = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * size, config.num_key_value_heads * size
    layer: list[tuple[int, int]] = [(queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries)]
    layer += [(inner, hidden), (inner, hidden), (hidden, inner)]
    layers = int(config.num_hidden_layers)
    return [*(layer * layers), (int(config.vocab_size), hidden)]


def make_int8pack(outs: int, k: int) -> Product:
    weight = torch.randint(-127, 128, (outs, k), dtype=torch.int8)
    scales = torch.rand(outs, dtype=torch.bfloat16) / 1000
    return lambda x: torch._weight_int8pack_mm(x, weight, scales)


def make_int4pack(outs: int, k: int) -> Product:
    weight = torch._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (outs, k), dtype=torch.int32), 1)
    scales = torch.rand(k // GROUP, outs, 2, dtype=torch.bfloat16) / 1000
    return lambda x: torch._weight_int4pack_mm_for_cpu(x, weight, GROUP, scales)


def make_dyn_quant(outs: int, k: int) -> Product:
    values = torch.randint(0, 256, (outs, k // 2), dtype=torch.uint8)
    scales = torch.rand(outs, k // GROUP, dtype=torch.bfloat16) / 1000
    weight = torch.ops.aten._dyn_quant_pack_4bit_weight(values, scales, None, GROUP, k, outs)
    return lambda x: torch.ops.aten._dyn_quant_matmul_4bit(x, weight, GROUP, k, outs)


def make_linear_dynamic(outs: int, k: int) -> Product:
    scales, zeros = torch.rand(outs, dtype=torch.float64) / 1000 + 1e-6, torch.zeros(outs, dtype=torch.int64)
    weight = torch._make_per_channel_quantized_tensor(
        torch.randint(-127, 128, (outs, k), dtype=torch.int8), scales, zeros, 0
    )
    packed = torch.ops.quantized.linear_prepack(weight, None)
    return lambda x: torch.ops.quantized.linear_dynamic(x, packed, False)


def make_own(bits: int) -> Callable[[int, int], Product]:
    def make(outs: int, k: int) -> Product:
        values = torch.randint(0, 1 << bits, (outs, k), dtype=torch.uint8)
        scales = GroupScales(numbers=(torch.rand(outs, k // GROUP) / 1000).half())
        weight = pack(GroupedValues(values=values, bits=bits, group=GROUP, scales=scales, offset=1 << (bits - 1)))
        return lambda x: multiply(weight, x, None, "int8")

    return make


OPERATORS: dict[str, tuple[Callable[[int, int], Product], torch.dtype]] = {
    "speculant int8": (make_own(8), torch.float32),
    "speculant int4": (make_own(4), torch.float32),
    "_weight_int8pack_mm": (make_int8pack, torch.bfloat16),
    "_weight_int4pack_mm_for_cpu": (make_int4pack, torch.bfloat16),
    "_dyn_quant_matmul_4bit": (make_dyn_quant, torch.float32),
    "quantized::linear_dynamic": (make_linear_dynamic, torch.float32),
}


if __name__ == "__main__":
    main()
