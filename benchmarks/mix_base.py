"""Measure `mix` with frozen bases: gain on recorded outputs and cost, compared with REST and ADED on the same corpus.

The corpora are those of mix_corpora.py. Every system replays the development recordings in file order, as trees of 64
nodes and as chains of 20 tokens, with an initially empty memory. "odd" is the MAT of every second request, on which
the settings of `mix` were not tuned.

    python benchmarks/mix_base.py --llama3 FILE -o benchmarks/results/mix-base.json
    python benchmarks/mix_base.py --llama3 FILE -o benchmarks/results/chains.json --systems NAME...

With `--folder`, everything that is built is kept there and reused; its bases can be passed to `--base`. With
`--recordings` the results are added to those of other recordings in the file. Drafters of other projects run in
separate processes, since the official ADED's memory grows by a tenth of a megabyte per draft once it has a table; it
drafts trees only.

FILE is Llama 3's tokenizer.model, as shipped in the package `llama-models`; reading it needs `tiktoken`, and Llama 2's
needs `sentencepiece`. Systems of other projects (`speculant.bench.systems.peers`) are run only if named.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from mix_corpora import LLAMA2, LLAMA3, VOCABULARIES, WEIGHTS, Tokens, encoded, excluded, llama2_encoder, llama3_encoder
from speculant.bench.replay.calibration import BINS
from speculant.bench.replay.player import Float64, ReplayResult, replay
from speculant.bench.replay.recorded import DRAFTS, list_recorded_names, replay_recorded
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.bench.systems.peers import ArcticSuffix, OfficialAded
from speculant.cli.env import environment
from speculant.core.drafter import Drafter
from speculant.corpus.base import SCORES_SHARE
from speculant.drafters.aded.corpus import TrigramCounter
from speculant.drafters.aded.drafter import AdedDrafter, save_table
from speculant.drafters.mix.base import MixBase, read_base, write_base
from speculant.drafters.mix.base_builder import BaseBuilder
from speculant.drafters.mix.drafter import MixDrafter
from speculant.drafters.mix.scores import Scorer
from speculant.drafters.suffix.array import SuffixArrayBuilder
from speculant.drafters.suffix.rest import RestDrafter, save_corpus
from speculant.engines.hf.tokenizer_files import load_tokenizer_file
from speculant.memory.fingerprint import tokenizer_fingerprint

NODES = 64
SHAPES = (("tree", NODES), ("chain", DRAFTS))  # the recorded chains have the same length
BUDGET = 64 << 20
LARGE = 1 << 30
BASES = ("mix, chat 64 MB", "mix, mixed 64 MB", "mix, mixed 24 MB", "mix, mixed 64 MB, no network")
PEERS = ("official aded", "official aded, chat", "arctic")  # systems of other projects
SYSTEMS = ("mix", *BASES, "aded, chat", *PEERS)  # systems that can be selected on their own
Network = Callable[[BaseBuilder, int], Scorer | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--llama3", type=Path, required=True, help="Llama 3's tokenizer.model")
    parser.add_argument(
        "--systems", nargs="+", metavar="NAME", choices=SYSTEMS, help="only these; default: all but peers"
    )
    parser.add_argument("--recordings", nargs="+", metavar="NAME", choices=(*LLAMA3, *LLAMA2), default=())
    parser.add_argument("--folder", type=Path, metavar="DIR", help="folder in which built files are kept")
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    held = json.loads(args.out.read_text()) if args.recordings and args.out.exists() else {"rows": [], "builds": {}}
    rows: list[dict[str, Any]] = [row for row in held["rows"] if row["recording"] not in args.recordings]
    builds: dict[str, Any] = held["builds"]
    files = {"llama3": args.llama3, "llama2": data / "tokenizers/llama2-32k.model"}
    encoders = {"llama3": llama3_encoder(files["llama3"]), "llama2": llama2_encoder(files["llama2"])}
    for tokenizer, names in (("llama3", LLAMA3), ("llama2", LLAMA2)):
        recordings = {name: list(read_recordings(data / "traces" / f"{name}.jsonl")) for name in names}
        chosen = [name for name in names if name in (args.recordings or names)]
        if not chosen:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if args.folder is None else args.folder / tokenizer
            folder.mkdir(parents=True, exist_ok=True)
            corpora = encoded(data, encoders[tokenizer], excluded(recordings))
            fingerprint = tokenizer_fingerprint(load_tokenizer_file(files[tokenizer]), VOCABULARIES[tokenizer])
            built = systems(folder, corpora, VOCABULARIES[tokenizer], fingerprint, args.systems)
            builds[tokenizer] = builds.get(tokenizer, {}) | built.figures
            for name in chosen:
                rows += played(name, recordings[name], built)
                args.out.write_text(json.dumps(report(builds, rows), indent=1) + "\n")


def report(builds: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the contents of the results file."""
    return {"environment": environment(), "weights": WEIGHTS, "builds": builds, "rows": rows}


class Systems:
    """Drafters by name, other projects' drafters separately, and the cost of their files."""

    def __init__(self) -> None:
        self.drafters: dict[str, Callable[[], Drafter]] = {}
        self.peers: dict[str, Callable[[], Drafter]] = {}
        self.figures: dict[str, Any] = {}


def systems(
    folder: Path,
    corpora: dict[str, list[Tokens]],
    vocabulary: int,
    fingerprint: str,
    names: Sequence[str] | None = None,
) -> Systems:
    """Build the named systems, or all but peers; bases contain the tokenizer's fingerprint."""
    found = Systems()
    found.figures["tokens"] = {name: sum(map(len, parts)) for name, parts in corpora.items()}
    chat = {"chat": corpora["chat"]}
    if not names or "mix" in names:
        found.drafters["mix"] = partial(MixDrafter, vocabulary=vocabulary)
    bases: dict[str, MixBase] = {}
    for name, domains, budget, network in (
        ("mix, chat 64 MB", chat, BUDGET, trained),
        ("mix, mixed 64 MB", corpora, BUDGET, trained),
        ("mix, mixed 24 MB", corpora, 24 << 20, trained),
        ("mix, mixed unpruned", corpora, LARGE, lambda _builder, _maximum: bases["mix, mixed 64 MB"].scorer),
        ("mix, mixed 64 MB, no network", corpora, BUDGET, lambda _builder, _maximum: None),
    ):
        if names and name not in names:
            continue
        path = folder / name.replace(", ", "-").replace(" ", "-")
        if path.exists():
            bases[name] = read_base(path, vocabulary=vocabulary, tokenizer=fingerprint)
        else:
            bases[name], found.figures[name] = built_base(
                path, domains, vocabulary, budget, network, tokenizer=fingerprint
            )
        found.drafters[name] = partial(MixDrafter, vocabulary=vocabulary, bases=[bases[name]])
    if not names:
        rest, maximum = folder / "rest", (folder / "mix-chat-64-MB").stat().st_size
        found.figures["rest, chat"] = built_rest(rest, corpora["chat"], vocabulary, maximum)
        found.drafters["rest, chat"] = lambda: loaded(RestDrafter(vocabulary=vocabulary, memory_limit=LARGE), rest)
    if not names or "aded, chat" in names:
        aded = folder / "aded"
        found.figures["aded, chat"] = built_aded(aded, corpora["chat"], vocabulary)
        found.drafters["aded, chat"] = lambda: loaded(AdedDrafter(vocabulary=vocabulary, memory_limit=LARGE), aded)
    peers: dict[str, Callable[[], Drafter]] = {
        "official aded": OfficialAded,
        "official aded, chat": partial(OfficialAded, corpora["chat"]),
        "arctic": ArcticSuffix,
    }
    found.peers = {name: make for name, make in peers.items() if name in (names or ())}
    return found


def trained(builder: BaseBuilder, maximum: int) -> Scorer | None:
    """Return a trained network of at most `maximum` bytes."""
    return builder.train_scorer(maximum, lambda _tokens: None)


def loaded(drafter: Any, path: Path) -> Drafter:
    """Return a drafter that starts from a file."""
    drafter.load(path)
    return drafter  # type: ignore[no-any-return]


def built_base(
    path: Path,
    corpora: dict[str, list[Tokens]],
    vocabulary: int,
    budget: int,
    network: Network,
    *,
    tokenizer: str = "",
) -> tuple[MixBase, dict[str, Any]]:
    """Build, write and open a base; return it with its figures."""
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
    facts = {"tokens": builder.tokens, "entries": built.entries}
    write_base(path, built.lines, scorer, vocabulary=vocabulary, tokenizer=tokenizer, facts=facts)
    ended = time.perf_counter()
    base = read_base(path, vocabulary=vocabulary, tokenizer=tokenizer)
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


def built_aded(path: Path, parts: Sequence[Tokens], vocabulary: int) -> dict[str, Any]:
    """Write ADED's table of a corpus."""
    counter = TrigramCounter(vocabulary)
    for ids in parts:
        counter.add(ids)
    save_table(path, counter.table(), tokenizer="", vocabulary=vocabulary)
    return {"tokens": counter.tokens, "bytes": path.stat().st_size}


def built_rest(path: Path, parts: Sequence[Tokens], vocabulary: int, maximum: int) -> dict[str, Any]:
    """Write REST's datastore with as many documents as `maximum` bytes hold, from every part of the corpus."""
    share = 1.0
    while True:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            builder = SuffixArrayBuilder(vocabulary, Path(folder))
            kept = parts[:: max(1, round(1 / share))] if share <= 0.5 else parts[: round(len(parts) * share)]
            for ids in kept:
                builder.add(ids)
            save_corpus(path, builder.blocks(), tokenizer="")
        size = path.stat().st_size
        if size <= maximum:
            return {"tokens": builder.tokens, "bytes": size}
        share *= 0.98 * maximum / size


@dataclass(slots=True)
class Played:
    """Accepted tokens of one drafter with drafts of one shape, by request."""

    drafter: Drafter
    tokens: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    micros: list[float] = field(default_factory=list)
    predicted: Float64 = field(default_factory=lambda: np.zeros(BINS))
    hits: Float64 = field(default_factory=lambda: np.zeros(BINS))
    checked: int = 0

    def play(self, recorded: Sequence[Recording], shape: str, nodes: int) -> None:
        """Replay the next requests."""
        result = replay(self.drafter, recorded, nodes=nodes, chain=shape == "chain")
        assert result.drafting is not None
        tokens, rounds = counts(result)
        self.tokens += tokens
        self.rounds += rounds
        self.micros += (result.drafting.propose_seconds * 1e6).tolist()
        reliability = result.drafting.reliability
        self.predicted += reliability.predicted
        self.hits += reliability.hits
        self.checked += int(reliability.counts.sum())

    def figures(self) -> dict[str, Any]:
        """Return the figures over all requests."""
        return mats(self.tokens, self.rounds) | {
            "ece": float(np.abs(self.predicted - self.hits).sum() / self.checked) if self.checked else None,
            "draft_us": {"p50": np.percentile(self.micros, 50), "p99": np.percentile(self.micros, 99)},
        }


def played_apart(make: Callable[[], Drafter], recorded: Sequence[Recording], shape: str, nodes: int) -> dict[str, Any]:
    """Return the figures of one drafter, replayed in a separate process."""
    played = Played(make())
    played.play(recorded, shape, nodes)
    return played.figures()


def counts(result: ReplayResult) -> tuple[list[int], list[int]]:
    """Return the tokens and rounds of each request."""
    requests = len(result.categories)
    rounds = np.bincount(result.request, minlength=requests)
    accepted = np.bincount(result.request, weights=result.accepted, minlength=requests).astype(np.int64)
    return (accepted + rounds).tolist(), rounds.tolist()


def mats(tokens: Sequence[int], rounds: Sequence[int]) -> dict[str, float]:
    """Return the MAT over all requests and over every second one."""
    return {"mat": sum(tokens) / sum(rounds), "odd": sum(tokens[1::2]) / sum(rounds[1::2])}


def played(name: str, recorded: list[Recording], systems: Systems) -> list[dict[str, Any]]:
    """Replay recordings with every drafter; ours alternate every ten requests, so that all see the same load."""
    held = {(system, shape): Played(make()) for system, make in systems.drafters.items() for shape in SHAPES}
    for at in range(0, len(recorded), 10):
        for (_, shape), each in held.items():
            each.play(recorded[at : at + 10], *shape)
    figures = {key: each.figures() for key, each in held.items()}
    for system, make in systems.peers.items():
        for shape in SHAPES[:1] if "aded" in system else SHAPES:
            with ProcessPoolExecutor(1, mp_context=get_context("fork")) as apart:
                figures[system, shape] = apart.submit(played_apart, make, recorded, *shape).result()
    rows = [
        {"recording": name, "system": system, "shape": shape, "nodes": nodes} | each
        for (system, (shape, nodes)), each in figures.items()
    ]
    if "eagle" in list_recorded_names(recorded):
        eagle = {"recording": name, "system": "EAGLE, recorded", "shape": "chain", "nodes": DRAFTS}
        rows.append(eagle | mats(*counts(replay_recorded("eagle", recorded))))
    for row in rows:
        print(f"{name:26s} {row['system']:24s} {row['shape']:5s} MAT {row['mat']:.3f}", flush=True)
    return rows


if __name__ == "__main__":
    main()
