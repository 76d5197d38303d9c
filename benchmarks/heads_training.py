"""Train heads of many kinds for the bundled model on the same texts, with the same CPU time for the steps of each.

A short run of each kind gives the CPU time of a step and with it the number of steps, so that the learning rate follows
steps and not the clock of a shared machine. The target's states are stored by a first run, whose time does not count.
Finished heads are kept and interrupted ones resumed, so that the same command continues. What each head's
`training.json` says is added to the results, with its CPU time and options. `--steps N` trains for so many steps in
place of a time, and `--as NAME` is the name in the results, for comparisons of a kind with itself.

    DATA="--prompts stories.jsonl --opening 2-60 --temperature 0:0.5,1:0.5"
    speculant train data $DATA --texts 512 --out texts
    speculant train data $DATA --texts 128 --seed 1 --out more
    python benchmarks/heads_training.py --data texts more --heads heads -o benchmarks/results/heads-training.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speculant.api.loading import bundled_draft_model, load_model
from speculant.cli.threads import set_threads
from speculant.training.files import Files
from speculant.training.fingerprint import identify
from speculant.training.kinds import find_kind
from speculant.training.progress import Progress
from speculant.training.reading import TrainData, read_data
from speculant.training.run import train_head
from speculant.training.settings import TrainSettings

FROM, TO = 10, 20  # steps whose CPU time is measured
COMMON = {"loss": "kl", "anchors": 40, "lr": 0.002, "seed": 1, "held_out": 64}
LENGTH, CACHE = 384, 4_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a kind is trained.

    Attributes:
        settings: training settings in addition to the common ones.
        options: options of the new head, as of `--set`.
        init: what it starts from, as of `--init`.
        taps: whether it reads other layers than the last, so that its states are stored apart.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    init: str | None = None
    taps: bool = False


PLANS = {
    "blockwise": Plan(),
    "medusa": Plan(),
    "hydra": Plan(),
    "hydra++": Plan(),
    "mlp": Plan(),
    "eagle": Plan(settings={"feature_weight": 2.0, "depth": 4, "depth_from": 0.6}),
    "p-eagle": Plan(options={"own_output": False}, taps=True),
    "glide": Plan(),
    "specdec": Plan(settings={"depth": 5}, options={"encoder": 2}),
    "pass": Plan(settings={"lr": 0.01}),
    "pard": Plan(init="the bundled draft model"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="results file, which is extended")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders of `speculant train data`")
    parser.add_argument("--heads", type=Path, required=True, help="folder for the heads")
    parser.add_argument("--seconds", type=float, default=90, help="CPU seconds of each head's steps")
    parser.add_argument("--steps", type=int, help="steps of each head, in place of --seconds")
    parser.add_argument("--warmup", type=int, default=50, help="warm-up steps of the learning rate")
    parser.add_argument("--as", dest="name", help="name in the results; default: the kind")
    parser.add_argument("--begun", type=Path, help="folder of heads to go on with; default: new heads")
    parser.add_argument("--kinds", metavar="NAME,...", default=",".join(PLANS))
    args = parser.parse_args()
    model, tokenizer = load_model(None, dtype="float32", device="cpu")
    set_threads(model, 1)
    identity = identify(model, tokenizer, name="the bundled story model", source="bundled")
    data = read_data(args.data, tokenizer, identity)
    training = Training(model, tokenizer, identity, data, args.heads, args.begun)
    for kind in args.kinds.split(","):
        if (args.heads / kind / "training.json").exists():
            continue
        found = training.train(kind, args.seconds, args.steps, args.warmup)
        results = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {"heads": {}}
        results["heads"][args.name or kind] = found
        args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        print(kind, found, flush=True)


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """Trains heads of one model on the same texts, in a folder each."""

    model: Any
    tokenizer: Any
    identity: Any
    data: TrainData
    heads: Path
    begun: Path | None

    def train(self, kind: str, seconds: float, steps: int | None, warmup: int) -> dict[str, Any]:
        """Train a head for this CPU time or these steps, or go on with it; return its figures."""
        self.store_states(kind)
        step = None if steps else round(self.step_seconds(kind), 4)
        folder, started, steps = self.heads / kind, time.process_time(), steps or int(seconds / (step or 1))
        resume = folder.exists()
        record = self.run(kind, folder, resume=resume, steps=steps, evaluate_every=-(-steps // 2), warmup=warmup)
        spent = {"cpu_seconds": round(time.process_time() - started, 1), "resumed": resume}
        plan = {"settings": dict(PLANS[kind].settings), "options": dict(PLANS[kind].options), "init": PLANS[kind].init}
        return {
            "step_cpu_seconds": step,
            "steps": steps,
            "warmup": warmup,
            **spent,
            **plan,
            **figures(record),
        }

    def store_states(self, kind: str) -> None:
        """Run the target once over all texts, unless its states are stored."""
        done = self.states(kind) / "done"
        if not done.exists():
            self.trial(kind, anchors=1, steps=-(-len(self.data.texts) // 8))
            done.touch()

    def step_seconds(self, kind: str) -> float:
        """Return the CPU time of a step, which is measured once."""
        notes = [self.heads / f"{kind}.json", *([] if self.begun is None else [self.begun / f"{kind}.json"])]
        if found := [note for note in notes if note.exists()]:
            return float(json.loads(found[0].read_text("utf-8")))
        clock = dict[int, float]()
        self.trial(kind, lambda progress: clock.setdefault(progress.step, time.process_time()), steps=TO + 1)
        step = (clock[TO] - clock[FROM]) / (TO - FROM)
        notes[0].write_text(json.dumps(step), "utf-8")
        return step

    def trial(self, kind: str, report: Any = None, **changes: Any) -> None:
        """Train a head that is thrown away."""
        folder = self.heads / f"{kind}-trial"
        shutil.rmtree(folder, ignore_errors=True)
        self.run(kind, folder, report=report, evaluate_every=1000, **changes)
        shutil.rmtree(folder)

    def run(
        self, name: str, folder: Path, *, resume: bool = False, report: Any = None, **changes: Any
    ) -> dict[str, Any]:
        """Train a head; return what its `training.json` holds."""
        kind, plan = find_kind(name), PLANS[name]
        own = {each: getattr(kind, each) for each in ("feature_weight", "depth", "decay")}
        init = None if plan.init is None else str(bundled_draft_model())
        if self.begun is not None:
            init = str(self.begun / name)
        record = train_head(
            kind,
            self.model,
            self.data,
            self.identity,
            TrainSettings(**own | COMMON | dict(plan.settings) | changes),
            Files(
                out=folder,
                resume=resume,
                options=plan.options if init is None else {},
                init=init,
                cache=CACHE,
                cache_folder=self.states(name),
            ),
            tokenizer=self.tokenizer,
            longest=LENGTH,
            report=report or show,
            note=print,
        )
        assert record is not None
        return record

    def states(self, kind: str) -> Path:
        """Return the folder of the target's states that a kind reads."""
        return self.heads / "states" / ("taps" if PLANS[kind].taps else "last")


def show(progress: Progress) -> None:
    """Print measurements of acceptance."""
    if progress.acceptance is not None:
        print(progress.step, [round(loss, 3) for loss in progress.losses], progress.acceptance.greedy, flush=True)


def figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the results hold of a training: held-out acceptance, and losses over the steps."""
    history = [{"step": each["step"], "losses": each["losses"], "greedy": each["greedy"]} for each in record["history"]]
    kept = ("data", "parameters", "tokens", "device", "torch", "held_out", "best")
    return {key: record[key] for key in kept} | {"history": history}


if __name__ == "__main__":
    main()
