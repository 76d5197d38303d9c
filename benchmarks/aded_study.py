"""The ablation study of ADED (docs/aded.md): its parts removed or changed one at a time, on recorded outputs.

    python benchmarks/aded_study.py corpus -o benchmarks/results/aded-representative.json
    python benchmarks/aded_study.py context -o benchmarks/results/aded-context.json
    python benchmarks/aded_study.py adaptation -o benchmarks/results/aded-adaptation.json
    python benchmarks/aded_study.py domains --llama3 FILE -o benchmarks/results/aded-domains.json
    python benchmarks/aded_study.py search -o benchmarks/results/aded-draft-makers.json
    python benchmarks/aded_study.py authors -o benchmarks/results/aded-authors.json
    python benchmarks/aded_study.py changes --llama3 FILE -o benchmarks/results/aded-changes.json

Unless a row says otherwise, drafts are trees of up to 64 nodes, the memory is kept across requests, and the initial
table is built from the answers in SPECULANT_DATA/corpora. FILE is Llama 3's tokenizer.model, as shipped in the package
`llama-models`. Encoded corpora are cached in `--folder`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from aded_contexts import ContextDrafter, ContextTable
from aded_parts import (
    NODES,
    PAPER,
    UNLIMITED_DEPTH,
    Parts,
    PartsDrafter,
    chat,
    count,
    figures,
    improved,
    paper,
    play,
    play_official,
    prune,
    published_bytes,
    recordings,
)
from aded_searches import Search, best, exhaustive, greedy, most_visited, published
from speculant.bench.replay.player import Int64, ReplayResult, replay
from speculant.bench.replay.traces import Recording
from speculant.bench.systems.peers import OfficialAded
from speculant.cli.env import environment
from speculant.core.drafter import Budget, Drafter, SessionRequest
from speculant.drafters.aded.drafter import AdedSettings
from speculant.drafters.aded.frozen import Frozen
from speculant.drafters.aded.paper import AdedPaperSettings

MTBENCH = "vicuna-7b-mtbench"
ROWS = 37  # node limit at which best-first drafts have as many nodes on average as the published ones
DRAFTS = 2000
BIN = 250  # output tokens per point of the curve over time
Row = dict[str, Any]


class Study:
    """Inputs shared by the subcommands."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.data = Path(os.environ["SPECULANT_DATA"])
        self.requests: int = args.requests
        self.llama3: Path | None = args.llama3
        self.folder: Path = args.folder
        self.folder.mkdir(parents=True, exist_ok=True)

    def texts(self, model: str = "llama2") -> list[Any]:
        """Return the texts of the corpus."""
        return chat(self.data, model, self.llama3, self.folder)

    def table(self, model: str = "llama2") -> Frozen:
        """Return the whole table of the corpus, including bi-grams."""
        return count(self.texts(model), model)

    def answers(self) -> list[Recording]:
        """Return Vicuna's answers on MT-Bench."""
        return recordings(self.data, MTBENCH, count=self.requests)


def corpus(study: Study) -> Iterator[Row]:
    """Yield MAT and bytes for corpora of several sizes and pruning levels."""
    texts, answers = study.texts(), study.answers()
    yield {"corpus_tokens": 0, "adaptation": True} | play(PartsDrafter(paper()), answers)
    for share in (64, 16, 4, 1):
        held = texts[::share]
        whole = count(held, "llama2")
        size = {"corpus_tokens": sum(map(len, held))}
        for successors, occurrences in ((1, 1), (4, 1), (12, 1), (255, 1), (12, 2)):
            base = prune(whole, successors=successors, occurrences=occurrences)
            about = {"successors": successors, "occurrences": occurrences, "trigrams": len(base.token)}
            about |= {"contexts": len(base.second), "published_bytes": published_bytes(base), "bytes": base.nbytes}
            for step in (PAPER.step, 0.0) if successors in (1, 12) else (PAPER.step,):
                drafter = PartsDrafter(paper(AdedPaperSettings(successors=successors, step=step)), base)
                yield size | about | {"adaptation": step > 0} | play(drafter, answers)
        if share in (16, 1):
            yield size | {"system": "draftretriever"} | figures(*play_official(held, answers))


def context(study: Study) -> Iterator[Row]:
    """Yield MAT by tokens of context, with best-first search throughout."""
    texts, answers = study.texts(), study.answers()
    held = {tokens: ContextTable(texts, tokens) for tokens in (1, 2, 3)}
    for used in ((1,), (2,), (3,), (2, 1), (3, 2, 1)):
        tables = [held[tokens] for tokens in used]
        for table in tables:
            table.forget()
        size = sum(table.published_bytes for table in tables)
        yield {"context": used, "published_bytes": size} | play(ContextDrafter(tables), answers)


def adaptation(study: Study) -> Iterator[Row]:
    """Yield MAT for several constants of the update, with the corpus and with an empty table."""
    answers = study.answers()
    base = prune(study.table())
    changes: list[Row] = [{}, {"step": 0.0}, {"step": 0.01}, {"step": 0.16}, {"step": 0.64}]
    changes += [{"window": 4}, {"window": 8}, {"window": 64}, {"cap": 0.3}, {"cap": 1.0}, {"cap": 6.0}]
    changes += [{"step": 0.16, "cap": 1.0}, {"step": 0.16, "cap": 6.0}]
    for change in changes:
        for used in (base, None):
            if used is None and change.get("step") == 0:
                continue
            parts = paper(AdedPaperSettings(**change))
            yield {"change": change, "corpus": used is not None} | play(PartsDrafter(parts, used), answers)
    for step in (0.04, 0.2):
        parts = paper(AdedPaperSettings(step=step), window=0)
        yield {"change": {"step": step, "each token": "once"}, "corpus": True} | play(
            PartsDrafter(parts, base), answers
        )
    parts = paper(rule=AdedSettings().rule()._replace(bigrams=False), window=0, search=best(4))
    yield {"change": {"rows": "counts that decay", "search": "best-first"}, "corpus": True} | play(
        PartsDrafter(parts, base), answers
    )
    yield {"change": {"search": "best-first"}, "corpus": True} | play(
        PartsDrafter(paper(search=best(4)), base), answers
    )


def domains(study: Study) -> Iterator[Row]:
    """Yield accepted tokens per round as the domain changes: chat, code, maths, chat again."""
    each = min(study.requests, 30)
    segments = {
        "chat": recordings(study.data, "llama31-8b-sharegpt", count=each // 2),
        "code": recordings(study.data, "llama31-8b-instructcoder", count=each),
        "maths": recordings(study.data, "llama31-8b-gsm8k", count=each),
        "chat again": recordings(study.data, "llama31-8b-sharegpt", start=each // 2, count=each // 2),
    }
    texts = study.texts("llama3")
    whole = count(texts, "llama3")
    base = prune(whole)
    still, moving = AdedPaperSettings(step=0), PAPER
    systems: dict[str, Callable[[], Drafter]] = {
        "published, no adaptation": lambda: PartsDrafter(paper(still, "llama3"), base),
        "published": lambda: PartsDrafter(paper(moving, "llama3"), base),
        "published, no corpus": lambda: PartsDrafter(paper(moving, "llama3")),
        "aded": lambda: PartsDrafter(improved(), whole),
    }
    results: dict[str, list[ReplayResult]] = {}
    for name, build in systems.items():
        drafter = build()
        results[name] = [replay(drafter, played, nodes=NODES) for played in segments.values()]
    results["draftretriever"] = play_official(texts, *segments.values())
    for name, parts in results.items():
        for segment, result in zip(segments, parts, strict=True):
            yield {"system": name, "segment": segment, "rounds_by_bin": by_bin(result.accepted + 1)} | figures(result)


def by_bin(yields: Int64) -> list[int]:
    """Return the number of rounds that begin in each full bin of output tokens, to compare systems bin by bin."""
    begins = np.cumsum(yields) - yields
    return np.bincount(begins // BIN)[: int(yields.sum()) // BIN].tolist()  # type: ignore[no-any-return]


def search(study: Study) -> Iterator[Row]:
    """Yield MAT and CPU time per draft for each search, then for several constants of PUCT."""
    answers = study.answers()
    base = prune(study.table(), successors=PAPER.successors)
    often = AdedPaperSettings(iterations=400)
    makers: dict[str, tuple[Search, int]] = {
        "PUCT, published paths": (published(PAPER, 32_000), 64),
        "greedy, same rows": (greedy, 36),
        "exhaustive, same rows": (exhaustive, ROWS),
        "best-first, same rows": (best(4), ROWS),
        "PUCT, most visited": (most_visited(PAPER), 64),
        "PUCT, most visited, 400 iterations": (most_visited(often), 64),
        "greedy": (greedy, 64),
        "exhaustive": (exhaustive, 64),
        "best-first": (best(4), 64),
        "best-first, any depth": (best(UNLIMITED_DEPTH), 64),
    }
    adapted = PartsDrafter(paper(), base)
    play(adapted, answers[: len(answers) // 2])
    micros = times(adapted, answers[len(answers) // 2 :], makers)
    for name, (maker, nodes) in makers.items():
        drafter = PartsDrafter(paper(search=maker, nodes=nodes), base)
        yield {"maker": name, "cpu_us": micros[name]} | play(drafter, answers)
    changes: list[Row] = [{"iterations": n} for n in (50, 100, 200, 400)]
    changes += [{"c1": c1} for c1 in (0.0, 1.814, 8.0, 128.0)] + [{"c2": c2} for c2 in (1.0, 1000.0)]
    constants = {json.dumps(change): (published(AdedPaperSettings(**change), 32_000), 64) for change in changes}
    micros = times(adapted, answers[len(answers) // 2 :], constants)
    for change in changes:
        drafter = PartsDrafter(paper(AdedPaperSettings(**change)), base)
        yield {"change": change, "cpu_us": micros[json.dumps(change)]} | play(drafter, answers)


def times(drafter: PartsDrafter, answers: list[Recording], makers: dict[str, tuple[Search, int]]) -> Row:
    """Return the median and 99th percentile of CPU microseconds per draft; the searches alternate."""
    random = np.random.default_rng(0)
    taken: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(1500):
        answer = answers[random.integers(len(answers))]
        text = np.concatenate([answer.prompt, answer.output])
        at = random.integers(len(answer.prompt), len(text))
        before, root = int(text[at - 1]), int(text[at])
        for name, (maker, nodes) in makers.items():
            began = time.thread_time_ns()
            maker(drafter.table, before, root, nodes)
            taken[name].append((time.thread_time_ns() - began) / 1000)
    return {
        name: {"median": round(float(np.median(each)), 1), "p99": round(float(np.percentile(each, 99)), 1)}
        for name, each in taken.items()
    }


def authors(study: Study) -> Iterator[Row]:
    """Yield CPU time and memory of drafts by the authors' drafter and by ours, each in its own process."""
    texts, answers = study.texts(), study.answers()
    for name in ("draftretriever", "as published", "aded"):
        with ProcessPoolExecutor(1, get_context("fork")) as pool:
            yield {"system": name} | pool.submit(searched, name, texts, answers).result()


def searched(name: str, texts: list[Any], answers: list[Recording]) -> Row:
    """Draft at random positions, after a tenth as many warm-up drafts."""
    if name == "draftretriever":
        drafter: Drafter = OfficialAded(texts)
    else:
        whole = count(texts, "llama2")
        drafter = PartsDrafter(improved(), whole) if name == "aded" else PartsDrafter(paper(), prune(whole))
    random, taken, resident = np.random.default_rng(0), list[float](), 0
    for place in range(-DRAFTS // 10, DRAFTS):
        if place == 0:
            resident = resident_bytes()
        answer = answers[random.integers(len(answers))]
        text = np.concatenate([answer.prompt, answer.output])
        at = random.integers(len(answer.prompt), len(text))
        session = drafter.open(SessionRequest(prompt=text[max(0, at - 64) : at]))
        began = time.thread_time_ns()
        session.propose(Budget(nodes=NODES, depth=NODES))
        if place >= 0:
            taken.append((time.thread_time_ns() - began) / 1000)
    micros = {"median": float(np.median(taken)), "mean": float(np.mean(taken)), "p99": float(np.percentile(taken, 99))}
    return {"cpu_us": micros, "drafts": DRAFTS, "resident_growth_bytes": resident_bytes() - resident}


def resident_bytes() -> int:
    """Return this process's resident memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def changes(study: Study) -> Iterator[Row]:
    """Yield MAT from the published method to `aded`, adding one change at a time."""
    given = AdedSettings()
    for model, names in (("llama2", [MTBENCH]), ("llama3", [f"llama31-8b-{name}" for name in DEVELOPMENT])):
        texts = study.texts(model)
        whole = count(texts, model)
        bare = prune(whole)
        open_rows = paper(model=model).rule._replace(bigrams=True)
        counts, deep = given.rule(), partial(best, UNLIMITED_DEPTH)
        ladder: list[tuple[str, Parts, Frozen]] = [
            ("published", paper(model=model), bare),
            ("best-first search, same rows", paper(model=model, search=best(4), nodes=ROWS), bare),
            ("all 64 rows", paper(model=model, search=best(4)), bare),
            ("any depth", paper(model=model, search=deep()), bare),
            ("bi-grams where no tri-gram is known", paper(model=model, search=deep(), rule=open_rows), whole),
            ("counts that decay, each token once", Parts(rule=counts, search=deep(escape=given.escape)), whole),
            ("the whole prompt", Parts(rule=counts, search=deep(escape=given.escape), prompt=True), whole),
            ("exploration: aded", improved(), whole),
        ]
        for name in names:
            played = recordings(study.data, name, count=study.requests)
            for change, parts, base in ladder:
                yield {"recording": name, "change": change} | play(PartsDrafter(parts, base), played)
            yield {"recording": name, "change": "draftretriever"} | figures(*play_official(texts, played))


DEVELOPMENT = ("sharegpt", "gsm8k", "instructcoder")
PARTS = {each.__name__: each for each in (corpus, context, adaptation, domains, search, authors, changes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--llama3", type=Path, help="Llama 3's tokenizer.model")
    parser.add_argument("--folder", type=Path, default=Path("build/aded"), help="cache of encoded corpora")
    parser.add_argument("--requests", type=int, default=60, help="requests to replay")
    args = parser.parse_args()
    rows: list[Row] = []
    for row in PARTS[args.part](Study(args)):
        rows.append(row)
        print(json.dumps({name: value for name, value in row.items() if name != "rounds_by_bin"}), file=sys.stderr)
    conditions = {"part": args.part, "requests": args.requests, "environment": environment()}
    lines = ",\n  ".join(map(json.dumps, rows))
    args.out.write_text(f'{{\n "conditions": {json.dumps(conditions)},\n "rows": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
