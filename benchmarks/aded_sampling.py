"""Acceptance of ADED, REST and Lookahead with a sampling target, by temperature and top-p.

The bundled story model continues held-out stories. ADED's tables and REST's datastore are built from the training text.
Drafts do not change the text, so methods that learn from text alone are replayed on the output of plain decoding;
methods that need the model's passes run with the same seeds and must give the same texts. The authors' drafter also
drafts for this library's acceptance rule, since its own does not preserve the target's distribution. A memory is kept
over the stories of a cell and reset for each cell.

    OMP_NUM_THREADS=1 python benchmarks/aded_sampling.py -o benchmarks/results/aded-sampling.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from speculant import Speculator
from speculant.api.loading import load_model
from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import Recording
from speculant.bench.systems.inflate import inflate
from speculant.bench.systems.peers import OfficialAded
from speculant.cli.env import environment
from speculant.cli.main import main as speculant
from speculant.drafters.aded.drafter import AdedSettings
from speculant.drafters.aded.paper import AdedPaperSettings
from targets import data_folder, story_prompts

NODES, PROMPT = 64, 32
TEMPERATURES, TOP_PS = (0.3, 0.6, 0.8, 1.0), (0.5, 0.9, 1.0)
CELLS = [(0.0, 1.0), *((temperature, top_p) for temperature in TEMPERATURES for top_p in TOP_PS)]
QUERIES = 27  # rows of Lookahead's window in addition to the draft, with the published settings
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--stories", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        systems = Systems(Path(folder))
        prompts = [each.tolist() for each in story_prompts(systems.tokenizer, count=args.stories, tokens=PROMPT)]
        for temperature, top_p in CELLS:
            sampling = {"temperature": temperature, "max_new_tokens": args.tokens}
            sampling |= {"top_p": top_p} if temperature else {}
            for row in systems.measure(prompts, sampling):
                rows.append({"temperature": temperature, "top_p": top_p} | row)
                print(json.dumps(rows[-1]), file=sys.stderr)
    settings = {"nodes": NODES, "stories": args.stories, "tokens": args.tokens, "prompt_tokens": PROMPT}
    lines = ",\n  ".join(map(json.dumps, rows))
    facts = f'"environment": {json.dumps(environment())},\n "settings": {json.dumps(settings)}'
    args.out.write_text(f'{{\n {facts},\n "rows": [\n  {lines}\n ]\n}}\n')


class Systems:
    """The model, the corpora of its training text, and the compared systems."""

    def __init__(self, folder: Path, *, layers: int = 0, mlp: int | None = None) -> None:
        """Load the model, inflated to `layers` and `mlp` if they are given, and build the corpora in `folder`."""
        self.model, self.tokenizer = load_model(None)
        if layers or mlp:
            self.model = inflate(self.model, layers=layers, mlp=mlp)
        self.plain = Speculator.from_transformers(self.model, self.tokenizer, method="none")
        stories = data_folder() / "text/tinystories"
        texts = [stories / "train-a.txt", stories / "train-b.txt"]
        self.paths = {kind: folder / f"{kind}.speculant" for kind in ("trigram", "suffix")}
        for kind, path in self.paths.items():
            words = ["corpus", "build", "--model", "bundled", "--kind", kind, "-o", str(path), *map(str, texts)]
            if code := speculant(words):
                raise SystemExit(code)
        pieces = "".join(path.read_text(encoding="utf-8") for path in texts).split("<|endoftext|>")
        self.documents = [np.array(self.tokenizer(each.strip())["input_ids"], np.int32) for each in pieces]

    def measure(self, prompts: Sequence[list[int]], sampling: Row) -> list[Row]:
        """Return a row for each system.

        Raises:
            SystemExit: if drafts changed a text.
        """
        texts = [each.ids for each in self.decode(self.plain, prompts, sampling)]
        # A text's first token comes from the prompt's pass, before any draft.
        played = [
            Recording(np.array([*prompt, text[0]], np.int32), np.array(text[1:], np.int32))
            for prompt, text in zip(prompts, texts, strict=True)
            if len(text) > 1
        ]
        still = AdedSettings(top_k=0)
        replayed: dict[str, Callable[[], Any]] = {
            "aded-paper": self.published,
            "draftretriever": lambda: OfficialAded(self.documents),
            "aded, top_k 0": lambda: self.make(method="aded", memory=self.paths["trigram"], settings=still).drafter,
            "rest": lambda: self.make(method="rest", memory=self.paths["suffix"]).drafter,
        }
        rows = []
        for name, build in replayed.items():
            result = replay(build(), played, nodes=NODES)
            assert result.drafting is not None
            rows.append(row_of(name, result.rounds, int(result.accepted.sum()), int(result.drafting.nodes.sum())))
        live: dict[str, Row] = {
            "aded": {"method": "aded", "memory": self.paths["trigram"]},
            "lookahead": {"method": "lookahead"},
        }
        for name, options in live.items():
            results = self.decode(self.make(**options), prompts, sampling)
            if [each.ids for each in results] != texts:
                raise SystemExit(f"{name}, {sampling}: a text is not that of plain decoding.")
            stats = [each.stats for each in results]
            counts = (sum(getattr(each, field) for each in stats) for field in ("rounds", "accepted", "drafted"))
            rows.append(row_of(name, *counts, queries=QUERIES if name == "lookahead" else 0))
        return rows

    def published(self, settings: AdedPaperSettings | None = None) -> Any:
        """Return the published drafter, started from a corpus and without a memory file."""
        drafter: Any = self.make(method="aded-paper", settings=settings).drafter
        drafter.load(self.paths["trigram"])
        return drafter

    def make(self, **options: Any) -> Speculator:
        """Return a new speculator for the model."""
        usual = {"nodes": NODES, "base": None, "fast": self.plain.fast}
        return Speculator.from_transformers(self.model, self.tokenizer, **usual | options)

    @staticmethod
    def decode(speculator: Speculator, prompts: Sequence[list[int]], sampling: Row) -> list[Any]:
        """Return the continuations, each with its own seed."""
        return [speculator.generate(prompt, seed=seed, **sampling) for seed, prompt in enumerate(prompts)]


def row_of(name: str, rounds: int, accepted: int, drafted: int, *, queries: int = 0) -> Row:
    """Return tokens per pass, and rows per pass without the root."""
    return {"method": name, "mat": round(1 + accepted / rounds, 4), "rows": round(drafted / rounds + queries, 1)}


if __name__ == "__main__":
    main()
