"""Align a small draft model with the story model: acceptance before and after several kinds of training.

Each system starts from the same weights and takes the same number of steps:

- seq-kd: cross-entropy on texts written by the target (sequence-level distillation)
- off-policy kl: forward KL on the same texts
- on-policy kl, tvd: DistillSpec, where the student writes and the target scores
- one model, two models: the share of positions where a greedy draft is right, or one of two drafts of models trained by
  boosting (Col-BT); parameters and steps are equal in all

    python benchmarks/distillation.py TEXTS -o benchmarks/results/distillation.json

All are trained with the code of `speculant train draft-model` and measured with their final weights. TEXTS is a folder
of shards (.npz) with `ids` and `lengths`, as written by `models/stories/target_texts.py`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.api.loading import bundled_draft_model, load_model
from speculant.training.files import Files
from speculant.training.fingerprint import TargetIdentity, identify
from speculant.training.kinds import DRAFT_MODEL
from speculant.training.reading import TrainData
from speculant.training.run import train_head
from speculant.training.settings import TrainSettings
from speculant.training.student import Student
from speculant.training.texts import Texts, from_parts

WAYS: dict[str, dict[str, Any]] = {
    "seq-kd": {"loss": "ce"},
    "off-policy kl": {"loss": "kl"},
    "on-policy kl": {"loss": "kl", "on_policy": 1.0},
    "on-policy tvd": {"loss": "tvd", "on_policy": 1.0},
}
LONGEST = 160  # maximum tokens per text
SAMPLE = 4  # boosting skips positions where this many tokens are correct
HELD_BACK = 8  # validation texts during training
NEW: dict[str, Any] = {"lr": 0.03, "optimizer": "muon"}  # for new layers
BATCH = 8  # texts per evaluation batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--warm-steps", type=int, default=300, help="initial seq-kd steps shared by all systems")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--count", type=int, default=1024, help="training texts; 64 more are held out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--boosting", action="store_true", help="measure boosting only")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts = read_texts(args.texts, args.count + 64)
    held_out = texts.select(np.arange(64))
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), texts.select(np.arange(64, len(texts))), held_out)
        start = bench.trained("start", bench.new_student(1), args.warm_steps, loss="ce", **NEW)
        results: dict[str, Any] = {
            "texts": args.count,
            "held_out_texts": len(held_out),
            "warm_steps": args.warm_steps,
            "steps": args.steps,
            "parameters": sum(weight.numel() for weight in load_model(str(start))[0].parameters()),
            "before": bench.measured([start]),
            "after": {},
        }
        for name, options in () if args.boosting else WAYS.items():
            student = bench.trained(name, start, args.steps, lr=1e-3, seed=1, **options)
            results["after"][name] = bench.measured([student])
            print(name, results["after"][name], flush=True)
        results["boosting"] = boosting(bench, args.steps)
        print(results["boosting"], flush=True)
    results["cpu_seconds"] = round(time.process_time() - began)
    args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def boosting(bench: Bench, steps: int) -> dict[str, Any]:
    """Return the agreement of one model and of the union of two, each new and trained for `steps` steps with kl.

    Two models that differ only in their initial weights show the gain of boosting itself.
    """
    options: dict[str, Any] = {"loss": "kl", "seed": 2, **NEW}
    first, second = bench.new_student(2), bench.new_student(3)
    one = bench.trained("one", first, steps, **options)
    alike = bench.trained("alike", second, steps, **options)
    boosted = bench.trained("boosted", second, steps, before=(str(one),), **options)
    by_samples = bench.trained("by samples", second, steps, before=(str(one),), before_tokens=SAMPLE, **options)
    longer = bench.trained("longer", first, 2 * steps, **options)
    return {
        "one model": bench.measured([one]),
        "one model, twice the steps": bench.measured([longer]),
        "two models alike": bench.measured([one, alike]),
        "two models boosted": bench.measured([one, boosted]),
        f"two models boosted by samples of {SAMPLE} tokens": bench.measured([one, by_samples]),
    }


class Bench:
    """The target, its texts, and a folder of students."""

    def __init__(self, folder: Path, texts: Texts, held_out: Texts) -> None:
        self._folder, self._texts, self._held_out = folder, texts, held_out
        self._target, self._tokenizer = load_model(None)

    def new_student(self, seed: int) -> Path:
        """Write a model with the bundled draft model's shape and embeddings, and with new layers."""
        bundled, _ = load_model(str(bundled_draft_model()))
        torch.manual_seed(seed)
        student = type(bundled)(bundled.config)
        tables = {name: weight for name, weight in bundled.state_dict().items() if "embed" in name or "lm_head" in name}
        student.load_state_dict(tables, strict=False)
        student.save_pretrained(self._folder / f"new-{seed}")
        return self._folder / f"new-{seed}"

    def trained(self, name: str, init: Path, steps: int, *, before: tuple[str, ...] = (), **options: Any) -> Path:
        """Train a student and return its folder."""
        out = self._folder / name.replace(" ", "-")
        settings = TrainSettings(
            steps=steps,
            evaluate_every=steps,
            anchors=LONGEST,
            warmup=20,
            held_out=HELD_BACK,
            keep="last",
            **options,
        )
        data = TrainData(self._texts, ("texts of the target",), ())
        files = Files(out=out, init=str(init), before=before)
        train_head(DRAFT_MODEL, self._target, data, self._identity(), settings, files, tokenizer=self._tokenizer)
        return out

    @torch.no_grad()
    def measured(self, folders: Sequence[Path]) -> dict[str, float]:
        """Return how well students predict the target's text, over all positions of held-out texts.

        Returns:
            "overlap": for the first student, the mean of sum min(p, q), the acceptance rate of speculative sampling at
            temperature 1. "agreement": the share of positions where the most probable token of the first student is
            the target's. "union": the share where it is that of any student, so that a tree of their drafts has it.
        """
        students = [Student(load_model(str(folder))[0]) for folder in folders]
        sums, count = np.zeros(3), 0
        for ids, counted in self._batches():
            p = self._target(input_ids=ids, use_cache=False).logits[:, :-1][counted].float().softmax(-1)
            q = [each.project(each.states(ids)[:, :-1][counted]).float().softmax(-1) for each in students]
            same = torch.stack([each.argmax(-1) == p.argmax(-1) for each in q])
            sums += float(torch.minimum(p, q[0]).sum()), int(same[0].sum()), int(same.any(0).sum())
            count += len(p)
        means = [round(value, 4) for value in (sums / count).tolist()]
        return dict(zip(("overlap", "agreement", "union"), means, strict=True))

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield held-out texts Int64[B, T] and the mask Bool[B, T - 1] of positions before tokens of the target."""
        for first in range(0, len(self._held_out), BATCH):
            texts = self._held_out.select(np.arange(first, min(first + BATCH, len(self._held_out))))
            ids = torch.zeros(len(texts), int(texts.lengths.max()), dtype=torch.long)
            for row in range(len(texts)):
                ids[row, : len(texts[row])] = torch.from_numpy(texts[row].astype(np.int64))
            place = torch.arange(ids.shape[1] - 1)
            lengths, prompts = torch.from_numpy(texts.lengths)[:, None], torch.from_numpy(texts.prompts)[:, None]
            yield ids, (place < lengths - 1) & (place >= prompts - 1)

    def _identity(self) -> TargetIdentity:
        return identify(self._target, self._tokenizer, name="the bundled story model", source="bundled")


def read_texts(folder: Path, count: int) -> Texts:
    """Return the first texts of a folder, cut to the maximum length; the first 16 tokens count as their prompts."""
    parts = list[Any]()
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as shard:
            cuts = np.cumsum(shard["lengths"])[:-1]
            found = np.split(shard["ids"].astype(np.int32), cuts)
        parts += [text[:LONGEST] for text in found if len(text) > 40]
        if len(parts) >= count:
            break
    return from_parts(parts[:count], [16] * len(parts[:count]))


if __name__ == "__main__":
    main()
