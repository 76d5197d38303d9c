"""Compute tokens per second with quantised weights along recorded outputs, from the pass costs of cpu_quantised.py.

Decoding forced along outputs takes minutes per request and system. Here the same outputs are replayed without a model,
and every pass is charged the measured time of the system for as many rows (linearly interpolated), after 64 cached
tokens. Speculant is charged 250 microseconds per round for drafting, the other systems nothing.

    python benchmarks/quantised_replay.py $RESULTS/cpu-quantised.json -o $RESULTS/quantised-replay.json
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from openvino_model import look_up
from quantised_systems import LLAMACPP_LOOKUP, OPENVINO_LOOKUP, verify_chains
from sizing import VOCABULARY, play
from speculant.api.sizes import Sizes
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.core.tree import Int32
from speculant.options.drafting import DraftingOptions
from speculant.registry import BuildContext, build_drafter
from speculant.sizing.step_cost import StepCost

FILES = ("instructcoder", "sharegpt", "gsm8k", "cnn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--formats", default="q8_0,q4_0")
    parser.add_argument("--requests", type=int, default=20, help="requests per file")
    parser.add_argument("--tokens", type=int, default=240, help="maximum tokens per output")
    args = parser.parse_args()
    formats = json.loads(args.measured.read_text())["formats"]
    report: dict[str, Any] = {"requests": args.requests, "token_limit": args.tokens, "formats": {}}
    for kind in args.formats.split(","):
        curves = {name: step_cost(rows) for name, rows in formats[kind]["passes"].items()}
        for file in FILES:
            path = Path(os.environ["SPECULANT_DATA"]) / "traces" / f"llama31-8b-{file}.jsonl"
            recordings = [
                replace(each, output=each.output[: args.tokens])
                for each in list(read_recordings(path))[: args.requests]
            ]
            found = replay_file(recordings, curves)
            report["formats"].setdefault(kind, {})[file] = found
            print(kind, file, {name: round(value, 1) for name, value in found.items()}, flush=True)
            args.out.write_text(json.dumps(report, indent=1) + "\n")


def step_cost(rows: dict[str, Any]) -> StepCost:
    """Return the seconds of passes by number of draft rows."""
    nodes = np.array([float(count) - 1 for count in rows])
    seconds = np.array([each["cpu"] / 1e3 for each in rows.values()])
    beyond = seconds[-1] + (seconds[-1] - seconds[-2]) / (nodes[-1] - nodes[-2]) * (64 - nodes[-1])
    return StepCost(np.append(nodes, 64.0), np.append(seconds, beyond))


def replay_file(recordings: Sequence[Recording], curves: dict[str, StepCost]) -> dict[str, float]:
    """Return tokens per second by system and method."""
    plain = {name: 1 / float(curve.of(np.zeros(1))[0]) for name, curve in curves.items()}
    found = {f"{name} none": rate for name, rate in plain.items()}
    own = curves["speculant"]
    drafter = build_drafter("mix", BuildContext(vocabulary=VOCABULARY, memory_limit=256 << 20))
    sizes = Sizes(DraftingOptions(), drafter.needs, known=None)
    mix = play(list(recordings), "mix", own, lambda: sizes.of(1))
    found["speculant mix"] = mix["throughput"] * plain["speculant"]
    found["speculant mix, tokens per pass"] = mix["mat"]
    theirs = LlamaPromptLookupDecoding(num_pred_tokens=LLAMACPP_LOOKUP)
    found[f"llama.cpp lookup:{LLAMACPP_LOOKUP}"] = chains(
        recordings, curves["llama.cpp"], lambda text: theirs(text).astype(np.int32)
    )
    found[f"openvino lookup:{OPENVINO_LOOKUP[0]}"] = chains(
        recordings, curves["openvino"], lambda text: look_up(text, *OPENVINO_LOOKUP)
    )
    return found


def chains(recordings: Sequence[Recording], curve: StepCost, draft: Callable[[Int32], Int32]) -> float:
    """Return the tokens per second of a drafter that drafts chains."""
    tokens, rows = 0, list[int]()

    def run(pass_tokens: Int32) -> torch.Tensor:
        rows.append(len(pass_tokens))
        return torch.zeros(len(pass_tokens), 1)

    for each in recordings:
        tokens += verify_chains(run, lambda _: None, draft, each.prompt, each.output.tolist()).tokens
    return tokens / float(curve.of(np.array(rows) - 1).sum())


if __name__ == "__main__":
    main()
