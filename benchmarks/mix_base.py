"""Frozen bases under `mix`: what they gain on recorded outputs, what they cost, and REST and ADED with the same corpus.

Chat is the answers of other models to unrelated instructions; code is that of SPECULANT_DATA and Python's standard
library; maths is worked answers of GSM8K; prose is books. Documents that share a 13-gram of tokens with a recording are
left out. Every system plays the development recordings in file order with 64 nodes and an empty memory at the start.

    python benchmarks/mix_base.py --llama3 FILE -o benchmarks/results/mix-base.json

FILE is Llama 3's tokenizer.model, as the package `llama-models` has it; reading it needs `tiktoken`, and Llama 2's
`sentencepiece`.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
import re
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant.bench.replay.player import replay
from speculant.bench.replay.recorded import recorded_names, replay_recorded
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.cli.env import environment
from speculant.core.drafter import Drafter
from speculant.drafters.aded.corpus import TrigramCounter
from speculant.drafters.aded.drafter import AdedDrafter, save_table
from speculant.drafters.mix.base import MixBase, read_base, write_base
from speculant.drafters.mix.base_builder import BaseBuilder, BuiltBase
from speculant.drafters.mix.drafter import MixDrafter
from speculant.drafters.suffix.array import SuffixArrayBuilder
from speculant.drafters.suffix.rest import RestDrafter, save_corpus
from speculant.memory.ngrams import NgramSet

NODES = 64
BUDGET = 64 << 20
LARGE = 1 << 30
LLAMA3 = tuple(f"llama31-8b-{name}" for name in ("cnn", "gsm8k", "instructcoder", "sharegpt"))
LLAMA2 = ("vicuna-7b-mtbench",)
VOCABULARIES = {"llama3": 128_256, "llama2": 32_000}
WEIGHTS = {"chat": 1.0, "code": 0.5, "prose": 0.3, "maths": 1.0}
PIECE = 8000  # characters of code and prose that are left out together
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
Tokens = NDArray[np.int32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--llama3", type=Path, required=True, help="Llama 3's tokenizer.model")
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    rows: list[dict[str, Any]] = []
    builds: dict[str, Any] = {}
    encoders = {"llama3": llama3_encoder(args.llama3), "llama2": llama2_encoder(data / "tokenizers/llama2-32k.model")}
    for tokenizer, names in (("llama3", LLAMA3), ("llama2", LLAMA2)):
        recordings = {name: list(read_recordings(data / "traces" / f"{name}.jsonl")) for name in names}
        with tempfile.TemporaryDirectory() as folder:
            corpora = encoded(data, encoders[tokenizer], excluded(recordings))
            built = systems(Path(folder), corpora, VOCABULARIES[tokenizer])
            builds[tokenizer] = built.figures
            for name, recorded in recordings.items():
                rows += played(name, recorded, built.drafters)
                args.out.write_text(json.dumps(report(builds, rows), indent=1) + "\n")


def report(builds: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is written."""
    return {"environment": environment(), "nodes": NODES, "weights": WEIGHTS, "builds": builds, "rows": rows}


def llama3_encoder(path: Path) -> Callable[[str], list[int]]:
    """Return the encoder of a file of Llama 3's tokenizer."""
    import tiktoken

    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, path.read_bytes().splitlines())}
    encoding = tiktoken.Encoding("llama3", pat_str=LLAMA3_PATTERN, mergeable_ranks=ranks, special_tokens={})
    return lambda text: [*encoding.encode_ordinary(text), 128_009]


def llama2_encoder(path: Path) -> Callable[[str], list[int]]:
    """Return the encoder of a file of Llama 2's tokenizer."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda text: [*processor.encode(text), 2]


def documents(data: Path) -> Iterator[tuple[str, str]]:
    """Yield the documents of every domain."""
    for part in ("a", "b"):
        with gzip.open(data / "corpora" / f"answers-{part}.jsonl.gz", "rt", encoding="utf-8") as file:
            yield from (("chat", json.loads(line)["output"]) for line in file)
    library = Path(sysconfig.get_path("stdlib"))
    modules = [path for path in sorted(library.rglob("*.py")) if not {"test", "tests", "site-packages"} & {*path.parts}]
    code, prose = sorted((data / "text/code").glob("*.txt")), sorted((data / "text/prose").glob("*.txt"))
    for path in (*modules, *code, *prose):
        text = path.read_text(encoding="utf-8", errors="replace").replace("<|endoftext|>", "")
        domain = "prose" if path in prose else "code"
        yield from ((domain, text[at : at + PIECE]) for at in range(0, len(text), PIECE))
    prompts = data / "prompts"
    for row in rows_of(prompts / "humaneval.jsonl"):
        yield "code", row["prompt"] + row["canonical_solution"]
    for row in rows_of(prompts / "mbpp.jsonl"):
        yield "code", row["text"] + "\n" + row["code"].replace("\r\n", "\n")
    for row in rows_of(prompts / "gsm8k-test.jsonl"):
        yield "maths", row["question"] + "\n" + re.sub(r"<<.*?>>", "", row["answer"])


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines."""
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def excluded(recordings: dict[str, list[Recording]]) -> NgramSet:
    """Return the 13-grams of recordings, without those of the chat template, which most recordings share."""
    found, shared = NgramSet(), 40
    for recorded in recordings.values():
        for recording in recorded:
            found.add(recording.prompt[shared:])
            found.add(recording.output)
    return found


def encoded(data: Path, encode: Callable[[str], list[int]], banned: NgramSet) -> dict[str, list[Tokens]]:
    """Return the documents of each domain as ids."""
    found: dict[str, list[Tokens]] = {name: [] for name in WEIGHTS}
    for domain, text in documents(data):
        ids = np.array(encode(text), np.int32)
        if not banned.shares(ids):
            found[domain].append(ids)
    return found


class Systems:
    """Drafters by name, and what their files cost."""

    def __init__(self) -> None:
        self.drafters: dict[str, Callable[[], Drafter]] = {}
        self.figures: dict[str, Any] = {}


def systems(folder: Path, corpora: dict[str, list[Tokens]], vocabulary: int) -> Systems:
    """Build everything that is compared."""
    found = Systems()
    found.figures["tokens"] = {name: sum(map(len, parts)) for name, parts in corpora.items()}
    chat = {"chat": corpora["chat"]}
    found.drafters["mix"] = partial(MixDrafter, vocabulary=vocabulary)
    for name, domains, budget in (
        ("mix, chat 64 MB", chat, BUDGET),
        ("mix, mixed 64 MB", corpora, BUDGET),
        ("mix, mixed 24 MB", corpora, 24 << 20),
        ("mix, mixed unpruned", corpora, LARGE),
    ):
        base, figures = built_base(folder / f"{len(found.figures)}", domains, vocabulary, budget)
        found.figures[name] = figures
        found.drafters[name] = partial(MixDrafter, vocabulary=vocabulary, bases=[base])
    rest = folder / "rest"
    found.figures["rest, chat"] = built_rest(
        rest, corpora["chat"], vocabulary, found.figures["mix, chat 64 MB"]["bytes"]
    )
    found.drafters["rest, chat"] = lambda: loaded(RestDrafter(vocabulary=vocabulary, memory_limit=LARGE), rest)
    aded, counter = folder / "aded", TrigramCounter(vocabulary)
    for ids in corpora["chat"]:
        counter.add(ids)
    save_table(aded, counter.table(), tokenizer="", vocabulary=vocabulary)
    found.figures["aded, chat"] = {"bytes": aded.stat().st_size}
    found.drafters["aded, chat"] = lambda: loaded(AdedDrafter(vocabulary=vocabulary, memory_limit=LARGE), aded)
    return found


def loaded(drafter: Any, path: Path) -> Drafter:
    """Return a drafter that begins with a file."""
    drafter.load(path)
    return drafter  # type: ignore[no-any-return]


def built_base(
    path: Path, corpora: dict[str, list[Tokens]], vocabulary: int, budget: int
) -> tuple[MixBase, dict[str, Any]]:
    """Build, write and open a base; return it and its figures."""
    began, tokens = time.perf_counter(), 0
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        builder = BaseBuilder(Path(folder), vocabulary=vocabulary)
        for domain, parts in corpora.items():
            for ids in parts:
                builder.add(ids, weight=WEIGHTS[domain])
        tokens = builder.tokens
        built: BuiltBase = builder.build(budget, lambda _tokens: None)
    write_base(path, built.lines, vocabulary=vocabulary, tokenizer="", facts={"tokens": tokens})
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    base = read_base(path, vocabulary=vocabulary, tokenizer="")
    return base, {
        "tokens": tokens,
        "bytes": path.stat().st_size,
        "entries": built.entries,
        "dropped": built.dropped,
        "build_seconds_per_million_tokens": seconds / tokens * 1e6,
        "open_seconds": time.perf_counter() - began,
    }


def built_rest(path: Path, parts: Sequence[Tokens], vocabulary: int, most: int) -> dict[str, Any]:
    """Write REST's datastore of as many documents as `most` bytes hold, from every part of the corpus."""
    share = 1.0
    while True:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            builder = SuffixArrayBuilder(vocabulary, Path(folder))
            kept = parts[:: max(1, round(1 / share))] if share <= 0.5 else parts[: round(len(parts) * share)]
            for ids in kept:
                builder.add(ids)
            save_corpus(path, builder.blocks(), tokenizer="")
        size = path.stat().st_size
        if size <= most:
            return {"tokens": builder.tokens, "bytes": size}
        share *= 0.98 * most / size


def played(name: str, recorded: list[Recording], drafters: dict[str, Callable[[], Drafter]]) -> list[dict[str, Any]]:
    """Play recordings with every drafter, in turns of ten requests, so that all see the same machine."""
    held = {system: make() for system, make in drafters.items()}
    tokens, rounds = dict.fromkeys(held, 0), dict.fromkeys(held, 0)
    micros: dict[str, list[float]] = {system: [] for system in held}
    errors: dict[str, Any] = dict.fromkeys(held, 0)  # by bin: predicted and accepted
    checked = dict.fromkeys(held, 0)
    for at in range(0, len(recorded), 10):
        for system, drafter in held.items():
            result = replay(drafter, recorded[at : at + 10], nodes=NODES)
            assert result.drafting is not None
            tokens[system] += result.tokens
            rounds[system] += result.rounds
            micros[system] += (result.drafting.propose_seconds * 1e6).tolist()
            errors[system] += np.array([result.drafting.reliability.predicted, result.drafting.reliability.hits])
            checked[system] += int(result.drafting.reliability.counts.sum())
    rows = [
        {
            "recording": name,
            "system": system,
            "mat": tokens[system] / rounds[system],
            "ece": float(np.abs(errors[system][0] - errors[system][1]).sum() / checked[system]),
            "draft_us": {"p50": np.percentile(micros[system], 50), "p99": np.percentile(micros[system], 99)},
        }
        for system in held
    ]
    if "eagle" in recorded_names(recorded):
        rows.append(
            {"recording": name, "system": "EAGLE chain, recorded", "mat": replay_recorded("eagle", recorded).mat}
        )
    for row in rows:
        print(f"{name:26s} {row['system']:24s} MAT {row['mat']:.3f}", flush=True)
    return rows


if __name__ == "__main__":
    main()
