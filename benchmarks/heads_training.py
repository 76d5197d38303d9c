"""Train heads of many kinds for the bundled model on the same texts, with the same CPU time for the steps of each.

Two short runs of each kind give the CPU time of a step and with it the number of steps, so that the schedule follows
steps and not the clock of a shared machine. The target's states are stored by a first run, whose time does not count.
Finished heads are kept and interrupted ones resumed, so that the same command continues. The last figures of each
head's `training.json`, its CPU time and its options are added to the results.

    speculant train data --prompts stories.jsonl --opening 2-60 --texts 1280 --temperature 0:0.5,1:0.5 --out texts
    python benchmarks/heads_training.py --data texts --heads heads -o benchmarks/results/heads-training.json
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMON = ("--loss", "kl", "--anchors", "40", "--length", "384", "--seed", "1", "--held-out", "64")
SHORT, LONG = 4, 24  # steps of the runs that are timed
CACHE = "4GB"

KINDS: dict[str, tuple[str, ...]] = {  # options in addition to the common ones
    "medusa": ("--lr", "0.002"),
    "blockwise": ("--lr", "0.002"),
    "hydra": ("--lr", "0.002"),
    "hydra++": ("--lr", "0.002"),
    "mlp": ("--lr", "0.002"),
    "eagle": ("--lr", "0.002", "--feature-weight", "2", "--depth", "4", "--depth-from", "0.6"),
    "p-eagle": ("--lr", "0.002", "--set", "own_output=false"),
    "glide": ("--lr", "0.002"),
    "specdec": ("--lr", "0.002", "--set", "encoder=2", "--depth", "5"),
    "pass": ("--lr", "0.01"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="results file, which is extended")
    parser.add_argument("--data", type=Path, required=True, help="folder of `speculant train data`")
    parser.add_argument("--heads", type=Path, required=True, help="folder for the heads")
    parser.add_argument("--seconds", type=float, default=240, help="CPU seconds of each head's steps")
    parser.add_argument("--kinds", metavar="NAME,...", default=",".join(KINDS))
    args = parser.parse_args()
    args.heads.mkdir(parents=True, exist_ok=True)
    for kind in args.kinds.split(","):
        folder = args.heads / kind
        if (folder / "training.json").exists():
            continue
        found = train(kind, args.data, args.heads, args.seconds)
        results = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {"heads": {}}
        results["heads"][kind] = found | figures(folder)
        args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        print(kind, results["heads"][kind], flush=True)


def train(kind: str, data: Path, heads: Path, seconds: float) -> dict[str, Any]:
    """Train a head, unless it is there already; return its steps and CPU seconds."""
    options = [kind, "--data", str(data), *COMMON, *KINDS[kind]]
    layers = "taps" if kind == "p-eagle" else "last"  # of the target's states
    options += ["--cache", CACHE, "--cache-dir", str(heads / "states" / layers)]
    plan, trial = heads / f"{kind}.json", heads / f"{kind}-trial"
    if not plan.exists():
        if not (filled := heads / "states" / f"{layers}.filled").exists():
            run([*options, "--anchors", "1", "--steps", str(steps_of_epoch(data)), "--out", str(trial)])
            shutil.rmtree(trial)
            filled.touch()
        spent = []
        for steps in (SHORT, LONG):
            spent.append(run([*options, "--steps", str(steps), "--out", str(trial)]))
            shutil.rmtree(trial)
        step = (spent[1] - spent[0]) / (LONG - SHORT)
        plan.write_text(json.dumps({"step_cpu_seconds": round(step, 4), "steps": int(seconds / step)}), "utf-8")
    planned: dict[str, Any] = json.loads(plan.read_text("utf-8"))
    steps, folder = planned["steps"], heads / kind
    resume = ["--resume"] if folder.exists() else []
    spent = run([
        *options, "--steps", str(steps), "--evaluate-steps", str(-(-steps // 4)), "--out", str(folder), *resume
    ])  # fmt: skip
    return planned | {"cpu_seconds": round(spent, 1), "resumed": bool(resume), "options": " ".join(KINDS[kind])}


def run(options: list[str]) -> float:
    """Run `speculant train`; return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "speculant", "train", *options], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def steps_of_epoch(data: Path) -> int:
    """Return the number of steps that read every text once, for batches of 8."""
    texts: int = json.loads((data / "data.json").read_text("utf-8"))["texts"]
    return -(-texts // 8)


def figures(folder: Path) -> dict[str, Any]:
    """Return the figures of a trained head: held-out acceptance, and loss over the steps."""
    record = json.loads((folder / "training.json").read_text("utf-8"))
    history = [{"step": each["step"], "losses": each["losses"], "greedy": each["greedy"]} for each in record["history"]]
    kept = ("data", "parameters", "tokens", "device", "torch")
    return {key: record[key] for key in kept} | {"best": record["best"], "history": history}


if __name__ == "__main__":
    main()
