"""Measure loading time and memory of a quantised model, at the first start and later ones, compared with float weights.

    python benchmarks/quantised_loading.py $SPECULANT_DATA/models/shape-0.5b/config.json -o quantised-loading.json

A checkpoint of this shape with random weights is written in bfloat16. Each start is a separate process, and times cover
loading only, without imports. The files are in the system's page cache. Memory is the peak resident size of the process
above its size before loading, split into anonymous pages and pages of mapped files, which the system can drop.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STARTS = (
    ("float32", {"dtype": "float32"}),
    ("bfloat16", {"dtype": "bfloat16"}),
    ("int8, first start", {"quantize": "int8"}),
    ("int8, later starts", {"quantize": "int8"}),
    ("int4, first start", {"quantize": "int4"}),
    ("int4, later starts", {"quantize": "int4"}),
)


def main() -> None:
    """Write a checkpoint, load it in separate processes, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("-o", "--output")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.load:
        print(json.dumps(load(asked.config, json.loads(asked.load))))
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(asked.config, folder)
        environment = os.environ | {"XDG_CACHE_HOME": folder, "OMP_NUM_THREADS": "1"}
        run(
            [sys.executable, __file__, folder, "--load", json.dumps(STARTS[2][1] | {"packed_cache": False})],
            environment,
        )
        for name, options in STARTS:  # the compiled code is cached by now
            found[name] = run([sys.executable, __file__, folder, "--load", json.dumps(options)], environment)
            print(f"{name:20} {json.dumps(found[name])}", flush=True)
    Path(asked.output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def run(command: list[str], environment: dict[str, str]) -> Any:
    """Run a process and return the last line that it prints, parsed as JSON."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def write_checkpoint(config: str, folder: str) -> None:
    """Write a model of the given shape with random weights, and the bundled tokenizer for the sample text."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from speculant.api.loading import load_tokenizer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(Path(config).parent), dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="400MB")
    load_tokenizer().save_pretrained(folder)


def load(folder: str, options: dict[str, Any]) -> dict[str, Any]:
    """Load a model and return seconds and megabytes."""
    import torch
    import transformers  # noqa: F401  (imported before the clock starts)
    from transformers import AutoModelForCausalLM  # noqa: F401

    from speculant.api.loading import load_model
    from speculant.engines.hf.quantized import loading  # noqa: F401

    torch.set_num_threads(1)
    load_model(None)  # imports classes that are loaded on first use
    before = memory()
    wall, thread = -time.perf_counter(), -time.process_time()
    model, _ = load_model(folder, device="cpu", **options)
    wall, thread = wall + time.perf_counter(), thread + time.process_time()
    after = memory()
    summary = getattr(model, "quantized_summary", None)
    return {
        "seconds": round(wall, 2),
        "processor_seconds": round(thread, 2),
        "peak_mb": round((after["VmHWM"] - before["VmRSS"]) / 1e3),
        "anonymous_mb": round((after["RssAnon"] - before["RssAnon"]) / 1e3),
        "file_mb": round((after["RssFile"] - before["RssFile"]) / 1e3),
        "packed_mb": None if summary is None else round(summary.packed / 1e6),
        "said": None if summary is None else str(summary).replace(folder, "..."),
    }


def memory() -> dict[str, int]:
    """Return the process's memory in kilobytes, under the kernel's names."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmHWM", "VmRSS", "Rss"))}


if __name__ == "__main__":
    main()
