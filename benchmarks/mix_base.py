"""Frozen bases under `mix`: what they gain on recorded outputs, what they cost, and REST and ADED with the same corpus.

The corpora are those of mix_corpora.py. Every system plays the development recordings in file order with 64 nodes and
an empty memory at the start.

    python benchmarks/mix_base.py --llama3 FILE -o benchmarks/results/mix-base.json

FILE is Llama 3's tokenizer.model, as the package `llama-models` has it; reading it needs `tiktoken`, and Llama 2's
`sentencepiece`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mix_corpora import LLAMA2, LLAMA3, VOCABULARIES, WEIGHTS, Tokens, encoded, excluded, llama2_encoder, llama3_encoder
from speculant.bench.replay.player import replay
from speculant.bench.replay.recorded import recorded_names, replay_recorded
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.cli.corpus_base import SCORES_SHARE
from speculant.cli.env import environment
from speculant.core.drafter import Drafter
from speculant.drafters.aded.corpus import TrigramCounter
from speculant.drafters.aded.drafter import AdedDrafter, save_table
from speculant.drafters.mix.base import MixBase, read_base, write_base
from speculant.drafters.mix.base_builder import BaseBuilder
from speculant.drafters.mix.drafter import MixDrafter
from speculant.drafters.mix.scores import Scorer
from speculant.drafters.suffix.array import SuffixArrayBuilder
from speculant.drafters.suffix.rest import RestDrafter, save_corpus

NODES = 64
BUDGET = 64 << 20
LARGE = 1 << 30
SYSTEMS = ("mix, chat 64 MB", "mix, mixed 64 MB", "mix, mixed 24 MB", "mix, mixed 64 MB, no network")
Network = Callable[[BaseBuilder, int], Scorer | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--llama3", type=Path, required=True, help="Llama 3's tokenizer.model")
    parser.add_argument("--systems", nargs="+", metavar="NAME", choices=SYSTEMS, help="only these; by default all")
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    rows: list[dict[str, Any]] = []
    builds: dict[str, Any] = {}
    encoders = {"llama3": llama3_encoder(args.llama3), "llama2": llama2_encoder(data / "tokenizers/llama2-32k.model")}
    for tokenizer, names in (("llama3", LLAMA3), ("llama2", LLAMA2)):
        recordings = {name: list(read_recordings(data / "traces" / f"{name}.jsonl")) for name in names}
        with tempfile.TemporaryDirectory() as folder:
            corpora = encoded(data, encoders[tokenizer], excluded(recordings))
            built = systems(Path(folder), corpora, VOCABULARIES[tokenizer], args.systems)
            builds[tokenizer] = built.figures
            for name, recorded in recordings.items():
                rows += played(name, recorded, built.drafters)
                args.out.write_text(json.dumps(report(builds, rows), indent=1) + "\n")


def report(builds: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is written."""
    return {"environment": environment(), "nodes": NODES, "weights": WEIGHTS, "builds": builds, "rows": rows}


class Systems:
    """Drafters by name, and what their files cost."""

    def __init__(self) -> None:
        self.drafters: dict[str, Callable[[], Drafter]] = {}
        self.figures: dict[str, Any] = {}


def systems(
    folder: Path, corpora: dict[str, list[Tokens]], vocabulary: int, names: Sequence[str] | None = None
) -> Systems:
    """Build what is compared: all systems, or those named."""
    found = Systems()
    found.figures["tokens"] = {name: sum(map(len, parts)) for name, parts in corpora.items()}
    chat = {"chat": corpora["chat"]}
    found.drafters["mix"] = partial(MixDrafter, vocabulary=vocabulary)
    bases: dict[str, MixBase] = {}
    for name, domains, budget, network in (
        ("mix, chat 64 MB", chat, BUDGET, trained),
        ("mix, mixed 64 MB", corpora, BUDGET, trained),
        ("mix, mixed 24 MB", corpora, 24 << 20, trained),
        ("mix, mixed unpruned", corpora, LARGE, lambda _builder, _most: bases["mix, mixed 64 MB"].scorer),
        ("mix, mixed 64 MB, no network", corpora, BUDGET, lambda _builder, _most: None),
    ):
        if names and name not in names:
            continue
        path = folder / f"{len(found.figures)}"
        bases[name], found.figures[name] = built_base(path, domains, vocabulary, budget, network)
        found.drafters[name] = partial(MixDrafter, vocabulary=vocabulary, bases=[bases[name]])
    if names:
        return found
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


def trained(builder: BaseBuilder, most: int) -> Scorer | None:
    """Return a network of at most `most` bytes."""
    return builder.train_scorer(most, lambda _tokens: None)


def loaded(drafter: Any, path: Path) -> Drafter:
    """Return a drafter that begins with a file."""
    drafter.load(path)
    return drafter  # type: ignore[no-any-return]


def built_base(
    path: Path, corpora: dict[str, list[Tokens]], vocabulary: int, budget: int, network: Network
) -> tuple[MixBase, dict[str, Any]]:
    """Build, write and open a base; return it and its figures."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        builder = BaseBuilder(Path(folder), vocabulary=vocabulary)
        for domain, parts in corpora.items():
            for ids in parts:
                builder.add(ids, weight=WEIGHTS[domain])
        read = time.perf_counter()
        scorer = network(builder, budget // SCORES_SHARE)
        trained_at, network_bytes = time.perf_counter(), sum(array.nbytes for array in scorer or ())
        built = builder.build(budget - network_bytes, lambda _tokens: None)
    write_base(path, built.lines, scorer, vocabulary=vocabulary, tokenizer="", facts={"tokens": builder.tokens})
    ended = time.perf_counter()
    base = read_base(path, vocabulary=vocabulary, tokenizer="")
    return base, {
        "tokens": builder.tokens,
        "bytes": path.stat().st_size,
        "network_bytes": network_bytes,
        "entries": built.entries,
        "dropped": built.dropped,
        "build_seconds_per_million_tokens": (ended - began) / builder.tokens * 1e6,
        "of_these_training": (trained_at - read) / builder.tokens * 1e6,
        "open_seconds": time.perf_counter() - ended,
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
