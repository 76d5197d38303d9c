"""End-to-end runs on two small real models: `speculant generate --compare` with prompts cut from held-out stories.

Twenty prompts of 12 words, 200 tokens each, greedy, fp32. `corpus` starts with a memory of the training text, built by
`speculant corpus build`; the other runs start with an empty one. The stories begin at number one thousand, since
earlier ones were used to choose settings.

    OMP_NUM_THREADS=1 python benchmarks/stories.py -o benchmarks/results

Both sides use one thread: passes of models this small gain little from a second one.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from speculant.cli.main import main as speculant

FIRST, PROMPTS, WORDS, TOKENS = 1000, 20, 12, 200
METHODS = ("aded", "mix", "recycling", "lookup")
CORPORA = {"aded": "trigram", "mix": "mix"}
TEXTS = ("prompt", "text", "ids")  # left out, since the texts are not redistributed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder for the results")
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    stories = data / "text/tinystories"
    with tempfile.TemporaryDirectory() as folder:
        cut = Path(folder) / "prompts.json"
        cut.write_text(json.dumps(cut_prompts(stories)))
        for name, source in {"bundled": "bundled", "stories260k": str(data / "models/stories260K")}.items():
            model = ["--model", source]
            for method in METHODS:
                compare(args.out / f"stories-{name}-{method}.json", method, cut, model, [])
            for method, kind in CORPORA.items():
                memory = Path(folder) / f"{name}-{kind}.speculant"
                texts = [str(stories / "train-a.txt"), str(stories / "train-b.txt")]
                run("corpus", "build", "--kind", kind, "-o", str(memory), *model, *texts)
                compare(
                    args.out / f"stories-{name}-{method}-corpus.json", method, cut, model, ["--memory", str(memory)]
                )


def cut_prompts(stories: Path, count: int = PROMPTS) -> list[str]:
    """Return the beginnings of `count` held-out stories."""
    held_out = [story.split() for story in (stories / "heldout.txt").read_text(encoding="utf-8").split("<|endoftext|>")]
    return [" ".join(words[:WORDS]) for words in held_out if len(words) > WORDS][FIRST : FIRST + count]


def compare(out: Path, method: str, prompts: Path, model: list[str], memory: list[str]) -> None:
    print(f"=== {out.stem}", flush=True)
    options = ["--method", method, "--nodes", "16", "--compare", "--max-new-tokens", str(TOKENS), "--json", str(out)]
    run("generate", "--prompts", str(prompts), *options, *model, *memory)
    rows = [{k: v for k, v in row.items() if k not in TEXTS} for row in json.loads(out.read_text())]
    out.write_text(json.dumps(rows, indent=1) + "\n")


def run(*words: str) -> None:
    if code := speculant(list(words)):
        raise SystemExit(code)


if __name__ == "__main__":
    main()
