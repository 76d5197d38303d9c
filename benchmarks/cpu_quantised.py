"""Quantised weights on a CPU: Speculant's own passes, llama.cpp and OpenVINO, side by side.

The models are a shape with random weights: as GGUF, written here by llama.cpp and read by both Speculant and llama.cpp,
and as compressed by OpenVINO's own tools (int8 per channel, int4 symmetric in groups of 64). In one process, the
systems of a format alternate: passes over chains of 1 to 32 rows after 64 cached tokens, and decoding forced along
recorded outputs, plain, with drafts, and with each system's own prompt lookup. Time to first token and memory are
measured in a separate process per system. `cpu` is the CPU time of the process, `wall` is wall-clock time; on a busy
machine compare the former, with one thread.

    python benchmarks/cpu_quantised.py $SHAPE --folder FILES -o FILE

`--step-cost` writes the passes of one system in one format as the curve that `sizing.py` and `speculant replay` read.

Results in FILE for other formats, parts and recorded files are kept. The GGUF files are kept in FILES, which must hold
OpenVINO's files in openvino-int8 and openvino-int4, written by `optimum-cli export openvino`. Needs
speculant[llamacpp], openvino and openvino-genai.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llamacpp import make_files
from quantised_systems import EngineSystem, Run, System, open_systems
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.bench.systems.forced import fit_vocabulary
from speculant.cli.env import environment
from speculant.core.tree import Int32
from speculant.drafters.mix.base import read_base

OPENVINO = {"q8_0": "openvino-int8", "q4_0": "openvino-int4", "q4_k": "openvino-int4"}
SYSTEMS = ("speculant", "llama.cpp", "openvino")
FILES = ("instructcoder", "sharegpt", "gsm8k", "cnn")
PARTS = ("passes", "forced", "prompt")
ROWS, CACHED = "1,2,4,8,16,32", 64
PROMPT, PROMPTS = 1000, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", type=Path, help="config.json of the shape, or its folder")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the model files")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--formats", default="q8_0,q4_0")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--files", default=",".join(FILES), help="recorded outputs in $SPECULANT_DATA/traces")
    parser.add_argument("--methods", default="", help="methods to decode with, where a system has them; all by default")
    parser.add_argument("--base", type=Path, help="base for Speculant's method `mix+base`; from quantised_base.py")
    parser.add_argument("--requests", type=int, default=20, help="requests per file")
    parser.add_argument("--tokens", type=int, default=120, help="maximum tokens per output")
    parser.add_argument("--max-prompt", type=int, default=1024, help="maximum prompt tokens; longer ones are skipped")
    parser.add_argument("--rounds", type=int, default=7, help="passes per number of rows")
    parser.add_argument("--rows", default=ROWS, help="rows of a pass, from 1 on")
    parser.add_argument("--step-cost", type=Path, help="also write the passes of the one system and format as a curve")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--first-token", metavar="SYSTEM,FORMAT", help="measure one system in part `prompt`")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.first_token:
        system, kind = args.first_token.split(",")
        print(json.dumps(time_first_token(system, kind, args.folder, args.threads)))
        return
    formats, names, parts = args.formats.split(","), args.systems.split(","), args.parts.split(",")
    rows = [int(each) for each in args.rows.split(",")]
    if args.step_cost and (len(formats), len(names), rows[0]) != (1, 1, 1):
        parser.error("--step-cost is the curve of one system and format, from 1 row on")
    base = read_base(args.base, vocabulary=vocabulary_of(args.shape), tokenizer="") if args.base else None
    make_files(args.shape, args.folder, formats)
    report: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"formats": {}}
    report["environment"] = environment() | {"commit": commit(), "packages": versions()}
    report |= {"shape": args.shape.name, "threads": args.threads}
    for kind in formats:
        found = report["formats"].setdefault(kind, {})
        gguf, openvino = args.folder / f"{kind}.gguf", args.folder / OPENVINO[kind]
        found["bytes"] = {"gguf": gguf.stat().st_size, "openvino": size_of(openvino)}
        if "prompt" in parts:
            found["prompt"] = {name: run_first_token(name, kind, args) for name in names}
            args.out.write_text(json.dumps(report, indent=1) + "\n")
        systems = open_systems(gguf, openvino, args.threads, names, base)
        if "passes" in parts:
            found["passes"] = time_passes(systems, rows, args.rounds)
            if args.step_cost:
                curve = step_cost(found["passes"][names[0]], f"{names[0]}, {args.shape.name} in {kind}", args)
                args.step_cost.write_text(json.dumps(curve, indent=1) + "\n")
            args.out.write_text(json.dumps(report, indent=1) + "\n")
        if "forced" in parts:
            found.setdefault("forced", {})
            for file in args.files.split(","):
                for results in decode_all(systems, file, args):
                    found["forced"][file] = results
                    args.out.write_text(json.dumps(report, indent=1) + "\n")
        del systems
        gc.collect()


def time_passes(systems: Mapping[str, System], counts: Sequence[int], rounds: int) -> dict[str, Any]:
    """Return milliseconds of passes by system and rows, as medians and minima of alternating rounds."""
    tokens = np.random.default_rng(0).integers(0, 100_000, CACHED + max(counts)).astype(np.int32)
    runs = dict[str, Callable[[Int32], object]]()
    for name, system in systems.items():
        system.read(tokens[:CACHED])
        runs[name] = system.open_passes()
    taken: dict[tuple[str, int], list[tuple[float, float]]] = {(name, rows): [] for name in systems for rows in counts}
    for _ in range(rounds):
        for rows in counts:
            for name, run in runs.items():
                run(tokens[CACHED : CACHED + rows])  # warm-up: the CPU caches hold another system's weights
                cpu, wall = time.process_time(), time.perf_counter()
                run(tokens[CACHED : CACHED + rows])
                taken[name, rows].append((time.process_time() - cpu, time.perf_counter() - wall))
    found: dict[str, Any] = {name: {} for name in systems}
    for (name, rows), times in taken.items():
        cpus, walls = np.array(times).T * 1e3
        found[name][rows] = {
            "cpu": float(np.median(cpus)),
            "min_cpu": float(cpus.min()),
            "wall": float(np.median(walls)),
        }
        print(name, rows, {key: round(value, 1) for key, value in found[name][rows].items()}, flush=True)
    return found


def step_cost(passes: Mapping[int, Mapping[str, float]], of: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the curve of passes by rows, one of which is the root (form: `speculant.sizing.step_cost`)."""
    text = f"{of}, {args.threads} thread(s), medians of {args.rounds} passes over a chain after {CACHED} cached tokens"
    return {
        "what": f"{text}, CPU time",
        "environment": environment() | {"commit": commit()},
        "nodes": [rows - 1 for rows in passes],
        "seconds": [round(taken["cpu"] / 1e3, 5) for taken in passes.values()],
    }


def decode_all(systems: Mapping[str, System], file: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Decode along the outputs of a file; after each, yield the results so far, by system and method."""
    path = Path(os.environ["SPECULANT_DATA"]) / "traces" / f"llama31-8b-{file}.jsonl"
    short = select_short(read_recordings(path), args.max_prompt)
    recordings, _ = fit_vocabulary(short[: args.requests], vocabulary_of(args.shape))
    wanted = args.methods.split(",") if args.methods else None
    totals = {
        f"{name} {method}": Run()
        for name, system in systems.items()
        for method in system.methods
        if wanted is None or method in wanted
    }
    for place, each in enumerate(recordings):
        output, order = each.output[: args.tokens].tolist(), list(totals)
        for system in systems.values():
            system.read(each.prompt)
        for label in [*order[place % len(order) :], *order[: place % len(order)]]:
            name, method = label.split()
            totals[label].add(systems[name].decode(method, each.prompt, output))
        print(file, place + 1, {label: round(run.tokens / run.cpu, 1) for label, run in totals.items()}, flush=True)
        yield {"requests": place + 1, "systems": {label: rates(run) for label, run in totals.items()}}


def vocabulary_of(shape: Path) -> int:
    """Return the number of token ids of a shape."""
    size: int = json.loads((shape / "config.json").read_text())["vocab_size"]
    return size


def select_short(recordings: Iterable[Recording], max_prompt: int) -> list[Recording]:
    """Return the recordings whose prompts have at most `max_prompt` tokens."""
    return [each for each in recordings if len(each.prompt) <= max_prompt]


def rates(run: Run) -> dict[str, float]:
    """Return a run's counts and its tokens per second by CPU time and by wall-clock time."""
    return asdict(run) | {"tokens_per_cpu_second": run.tokens / run.cpu, "tokens_per_second": run.tokens / run.wall}


def run_first_token(system: str, kind: str, args: argparse.Namespace) -> Any:
    """Measure one system's first token in a separate process and return its result."""
    command = [sys.executable, __file__, str(args.shape), "--folder", str(args.folder), "-o", str(args.out)]
    command += ["--threads", str(args.threads), "--first-token", f"{system},{kind}"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    print(system, kind, found, flush=True)
    return found


def time_first_token(system: str, kind: str, folder: Path, threads: int) -> dict[str, Any]:
    """Return the seconds to the first token of prompts of 1,000 tokens, and megabytes of memory before and after."""
    prompts = np.random.default_rng(0).integers(10, 100_000, (PROMPTS, PROMPT)).astype(np.int32)
    before = resident()
    began = time.process_time()
    if system == "openvino":
        run = openvino_pipeline(folder / OPENVINO[kind], threads)
    else:
        found = open_systems(folder / f"{kind}.gguf", None, threads, [system])[system]
        assert isinstance(found, EngineSystem)
        run = found.read
    load, taken = time.process_time() - began, []
    for prompt in prompts:
        cpu, wall = time.process_time(), time.perf_counter()
        run(prompt)
        taken.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpus, walls = np.array(taken).T
    return {
        "load_cpu": load,
        "first_token_cpu": float(cpus.min()),
        "first_token_wall": float(walls.min()),
        "memory_before": before,
        "memory": resident(),
    }


def openvino_pipeline(folder: Path, threads: int) -> Any:
    """Return a function that runs OpenVINO GenAI's own pipeline to the first token."""
    import openvino
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(folder, "CPU", INFERENCE_NUM_THREADS=threads)
    settings = openvino_genai.GenerationConfig()
    settings.max_new_tokens, settings.ignore_eos, settings.eos_token_id, settings.stop_token_ids = 1, True, 1, {1}
    return lambda prompt: pipeline.generate(openvino.Tensor(prompt[None].astype(np.int64)), settings)


def resident() -> dict[str, int]:
    """Return this process's memory in megabytes: total, private and file-mapped, and the peak so far."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = {"all": "VmRSS", "own": "RssAnon", "mapped": "RssFile", "most": "VmHWM"}
    return {name: int(lines[field].split()[0]) // 1000 for name, field in names.items()}


def size_of(folder: Path) -> int:
    """Return the total bytes of the files in a folder."""
    return sum(each.stat().st_size for each in folder.iterdir()) if folder.is_dir() else 0


def versions() -> dict[str, str]:
    """Return the versions of the compared packages."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("llama_cpp_python", "openvino", "openvino-genai", "nncf"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def commit() -> str:
    """Return the commit that was measured."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
