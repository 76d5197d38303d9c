"""Measure how fast GGUF matrices are packed for the kernels, compared with only reading the file, and the memory used.

    OMP_WAIT_POLICY=passive python benchmarks/gguf_loading.py -o benchmarks/results/gguf-loading.json

For each kind, a file of random blocks is written to a temporary folder and stays in the page cache, except in `cold`
runs, before which it is evicted. Reading and packing alternate, and the best round counts. GB/s refer to the bytes of
the file: by the CPU time of one thread, and by wall-clock time, which other work on the machine increases. Memory is
that of a process which packs the file once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import struct
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from speculant.engines.hf.cpu.build import processor
from speculant.engines.hf.quantized.gguf.file import GgufFile, open_gguf
from speculant.engines.hf.quantized.gguf.kinds import KINDS, row_bytes
from speculant.engines.hf.quantized.weight import QuantizedWeight

OUTS, INPUTS, CHUNK = 4864, 3584, 1 << 17


def write_file(path: Path, kind: str, tensors: int) -> None:
    """Write a file with `tensors` matrices of random bytes."""
    size = OUTS * row_bytes(kind, INPUTS)
    room, infos = -(-size // 32) * 32, b""
    for number in range(tensors):
        name = f"blk.{number}.weight".encode()
        numbers = (2, INPUTS, OUTS, KINDS[kind].code, number * room)
        infos += struct.pack("<Q", len(name)) + name + struct.pack("<I2QIQ", *numbers)
    header = b"GGUF" + struct.pack("<I2Q", 3, tensors, 0) + infos
    with path.open("wb") as file:
        file.write(header + bytes(-len(header) % 32))
        for _ in range(tensors):
            file.write(os.urandom(size) + bytes(room - size))


def read_all(path: Path) -> None:
    """Read a file into a reused buffer, as `cat` does."""
    buffer = bytearray(CHUNK)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def pack_all(file: GgufFile, threads: int) -> list[QuantizedWeight]:
    """Pack all matrices and return them."""
    return [tensor.read_packed(threads=threads) for tensor in file.tensors.values()]


def drop(path: Path) -> None:
    """Evict a file from the page cache; it must not be mapped."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(run: Callable[[], object], used: dict[str, list[float]]) -> None:
    """Record the wall-clock and CPU time of a run."""
    clock, own = time.perf_counter(), time.process_time()
    run()
    used["cpu"].append(time.process_time() - own)
    used["wall"].append(time.perf_counter() - clock)


def peak_memory(path: Path) -> dict[str, float]:
    """Return the size of the packed matrices and the peak memory of the process while packing, in MB."""
    file = open_gguf(path)
    next(iter(file.tensors.values())).read_packed(threads=1)  # loads the compiled code
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets the peak
    packed = sum(weight.bytes for weight in pack_all(file, 1))
    return {"packed_MB": packed / 1e6, "peak_MB": (_status("VmHWM") - before) / 1e6}


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    """Run all measurements and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--tensors", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for kind in given.kinds:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.gguf")
            write_file(path, kind, given.tensors)
            size = path.stat().st_size
            runs: dict[str, Callable[[Path], object]] = {
                "read": read_all,
                "pack_1": lambda path: pack_all(open_gguf(path), 1),
                "pack_2": lambda path: pack_all(open_gguf(path), 2),
                "cold_read": read_all,
                "cold_pack": lambda path: pack_all(open_gguf(path), 1),
            }
            used: dict[str, dict[str, list[float]]] = {name: {"cpu": [], "wall": []} for name in runs}
            for _ in range(given.rounds):
                for name, run in runs.items():
                    if name.startswith("cold"):
                        drop(path)
                    measure(partial(run, path), used[name])
            speeds = {
                f"{name}_{clock}_GB/s": size / min(seconds) / 1e9
                for name, clocks in used.items()
                for clock, seconds in clocks.items()
                if clock == "wall" or name in ("read", "pack_1")
            }
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                memory = pool.submit(peak_memory, path).result()
            tensor = size / given.tensors / 1e6
            results[kind] = {"file_MB": size / 1e6, "tensor_MB": tensor, **memory, **speeds}
            print(kind, {name: round(value, 2) for name, value in results[kind].items()})
    settings = {"matrix": [OUTS, INPUTS], "tensors": given.tensors, "rounds": given.rounds}
    found = {"settings": settings, "processor": processor().splitlines()[-1], "results": results}
    given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
