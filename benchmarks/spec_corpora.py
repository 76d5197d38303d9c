"""The methods of spec_table.py that can start with a corpus, starting with one, on the same recorded outputs.

Chat, the corpus that REST, ADED and SAM-Decoding start with, is answers of other models to other instructions. `mix`
starts with a frozen base of 64 MB with a network, of chat, or of chat, code, prose and maths ("mixed"). REST's
datastore takes no more room than the base of chat; ADED's tables and SAM-Decoding's automata hold all of chat. Left out
are documents that share 13 tokens with any recording of the same tokenizer, and answers to an instruction that a
replayed request contains (mix_corpora.py): those of vicuna-7b-alpaca are among the instructions of chat.

    python benchmarks/spec_corpora.py --llama3 FILE --folder DIR \
        --step-cost benchmarks/results/step-cost-bf16-epyc.json -o benchmarks/results/spec-table-corpora.json

FILE is Llama 3's tokenizer.model. What is built is kept in DIR and reused. Rows are those of `speculant replay --json`,
with the corpus and the size of its file, and are written after each recording; `--recordings` replaces the rows of
some. How they are replayed is in spec_corpora_runs.py.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from mix_base import BUDGET, built_aded, built_base, built_rest, trained
from mix_corpora import LLAMA3, VOCABULARIES, Tokens, asked, encoded, excluded, llama2_encoder, llama3_encoder
from spec_corpora_runs import MEMORY_LIMIT, NODES, STARTS, played
from spec_table import SHAPES, TASKS
from speculant.bench.replay.runs import in_order
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.bench.systems.peers import write_official_table
from speculant.cli.env import environment
from speculant.corpus.builders import DocumentLearner
from speculant.drafters.suffix.sam import SamDrafter
from speculant.engines.hf.tokenizer_files import load_tokenizer_file
from speculant.memory.fingerprint import tokenizer_fingerprint
from speculant.sizing.step_cost import read_step_cost

RECORDINGS = {"llama3": LLAMA3, "llama2": tuple(name for name in TASKS if name not in LLAMA3)}
REQUESTS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama3", type=Path, required=True, help="Llama 3's tokenizer.model")
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="folder that keeps what is built")
    parser.add_argument("--step-cost", type=Path, required=True, metavar="FILE", help="measured cost of passes")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--recordings", nargs="+", metavar="NAME", choices=tuple(TASKS), default=tuple(TASKS))
    parser.add_argument("--limit", type=int, default=REQUESTS, help="fewer requests of each recording, for a trial")
    args = parser.parse_args()
    if args.limit > REQUESTS:
        parser.error(f"the corpora leave out answers to the first {REQUESTS} requests only")
    data, cost = Path(os.environ["SPECULANT_DATA"]), read_step_cost(args.step_cost)
    held = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    rows = [row for row in held if row["file"] not in args.recordings]
    files = {"llama3": args.llama3, "llama2": data / "tokenizers/llama2-32k.model"}
    recorded = {name: list(read_recordings(data / "traces" / f"{name}.jsonl")) for name in TASKS}
    builds = {
        tokenizer: built(args.folder / tokenizer, files[tokenizer], data, {name: recorded[name] for name in names})
        for tokenizer, names in RECORDINGS.items()
    }
    machine = environment()  # loads PyTorch, so not between replays
    settings = {"nodes": NODES, "shapes": list(SHAPES), "limit": args.limit, "keep_memory": True, "jobs": 1}
    for name in args.recordings:
        folder = args.folder / ("llama3" if name in LLAMA3 else "llama2")
        requests = in_order(recorded[name], shuffled=False, seed=0, limit=args.limit)
        for row in played(name, requests, folder, cost):
            print("{file:26s} {method:20s} {corpus:5s} {shape:5s} {nodes!s:4s} {speedup:.2f}".format(**row), flush=True)
            rows.append(row)
        report = {"environment": machine, "settings": settings, "builds": builds, "rows": rows}
        args.out.write_text(json.dumps(report, indent=1) + "\n")


def built(folder: Path, file: Path, data: Path, recorded: dict[str, list[Recording]]) -> dict[str, Any]:
    """Build the files that the tokenizer's folder lacks; return the figures of all, which are kept beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    path, vocabulary = folder / "builds.json", VOCABULARIES[folder.name]
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if {start.file for start in STARTS} <= figures.keys():
        return figures
    encode = (llama3_encoder if folder.name == "llama3" else llama2_encoder)(file)
    answered = asked(data, encode, chain(*(requests[:REQUESTS] for requests in recorded.values())))
    corpora = encoded(data, encode, excluded(recorded), answered)
    figures["instructions_left_out"] = len(answered)
    figures["tokens"] = {domain: sum(map(len, parts)) for domain, parts in corpora.items()}
    fingerprint = tokenizer_fingerprint(load_tokenizer_file(file), vocabulary)
    base = partial(built_base, vocabulary=vocabulary, budget=BUDGET, network=trained, tokenizer=fingerprint)
    chat = corpora["chat"]
    builders: dict[str, Callable[[Path], dict[str, Any]]] = {
        "mix-mixed-64-MB": lambda path: base(path, corpora)[1],
        "mix-chat-64-MB": lambda path: base(path, {"chat": chat})[1],
        "aded": lambda path: built_aded(path, chat, vocabulary),
        "sam": lambda path: built_sam(path, chat, vocabulary),
        "rest": lambda path: built_rest(path, chat, vocabulary, figures["mix-chat-64-MB"]["bytes"]),
        "draftretriever": lambda path: built_authors(path, chat),
    }
    for name, build in builders.items():
        if name not in figures:
            figures[name] = build(folder / name)
            path.write_text(json.dumps(figures, indent=1) + "\n")  # last: a file without figures is built again
            print(f"{folder.name}: built {name}, {figures[name]['bytes'] / 1e6:.1f} MB", flush=True)
    return figures


def built_sam(path: Path, parts: list[Tokens], vocabulary: int) -> dict[str, Any]:
    """Write the text of SAM-Decoding's automata, which are built when it is loaded."""
    drafter = SamDrafter(vocabulary=vocabulary, memory_limit=MEMORY_LIMIT)
    learner = DocumentLearner(drafter)
    for ids in parts:
        learner.add(ids)
    drafter.save(path)
    return {"tokens": learner.tokens, "bytes": path.stat().st_size, "memory_bytes": drafter.memory_bytes}


def built_authors(path: Path, parts: list[Tokens]) -> dict[str, Any]:
    """Write the table of ADED's authors."""
    write_official_table(path, parts)
    return {"tokens": sum(map(len, parts)), "bytes": path.stat().st_size}


if __name__ == "__main__":
    main()
