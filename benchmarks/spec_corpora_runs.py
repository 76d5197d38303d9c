"""Replays of methods that start with a corpus: what each starts with, and how it is run.

Memories learn on from request to request. Everything runs in one process, except the code of ADED's authors, whose
memory grows with every draft: each of its runs has a process of its own, and fewer sizes are tried. The automata of
`sam` take half a minute to build, so they are built once and copied for each run.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from mix_corpora import VOCABULARIES
from spec_table import AUTO, SHAPES
from speculant.bench.replay.corpora import CorpusFile
from speculant.bench.replay.metrics import run_metrics
from speculant.bench.replay.player import ReplayResult
from speculant.bench.replay.runs import Run
from speculant.bench.replay.traces import Recording
from speculant.bench.systems.peers import OfficialAded
from speculant.core.drafter import Drafter
from speculant.drafters.suffix.sam import SamDrafter
from speculant.registry import find_method
from speculant.sizing.step_cost import StepCost

AUTHORS = "peer:draftretriever"
Nodes = int | Literal["auto"]
NODES: tuple[Nodes, ...] = ("auto", 3, 7, 20, 63)
AUTHORS_NODES: tuple[Nodes, ...] = ("auto", 7, 63)
MEMORY_LIMIT = 8 << 30  # no method drops anything of its corpus
CURVES = ("categories", "by_depth", "over_time", "reliability")  # fields of a replay that the results leave out


@dataclass(frozen=True, slots=True)
class Start:
    """A method, the corpus that it starts with, and the file that holds it."""

    method: str
    corpus: str
    file: str


STARTS = (
    Start("mix", "mixed", "mix-mixed-64-MB"),
    Start("mix", "chat", "mix-chat-64-MB"),
    Start("aded", "chat", "aded"),
    Start("aded-paper", "chat", "aded"),
    Start("sam", "chat", "sam"),
    Start("rest", "chat", "rest"),
    Start(AUTHORS, "chat", "draftretriever"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AuthorsRun(Run):
    """A run of the code of ADED's authors that starts with a table, in a process of its own."""

    table: Path

    def build(self) -> Drafter:
        return OfficialAded.read(self.table)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamRun(Run):
    """A run of `sam` on a copy of automata that were built before."""

    text: Path

    def build(self) -> Drafter:
        drafter = SamDrafter(vocabulary=self.vocabulary, memory_limit=self.memory_limit)
        drafter._history = deepcopy(automata(self.text, self.vocabulary)._history)
        return drafter


@lru_cache(maxsize=1)
def automata(text: Path, vocabulary: int) -> SamDrafter:
    """Return a drafter with the automata of a text, which its runs copy."""
    drafter = SamDrafter(vocabulary=vocabulary, memory_limit=MEMORY_LIMIT)
    drafter.load(text)
    return drafter


def played(name: str, requests: list[Recording], folder: Path, cost: StepCost) -> Iterator[dict[str, Any]]:
    """Replay the requests with every method, and yield the rows."""
    for start in STARTS:
        for shape in SHAPES:
            sized = run_of(start, name, requests, folder, cost, shape=shape)
            if start.method != AUTHORS:
                replace(sized, recordings=requests[:1]).replay()  # so that no timed draft reads files or loads kernels
            for nodes in AUTHORS_NODES if start.method == AUTHORS else NODES:
                run = replace(sized, nodes=nodes)
                result = replayed_apart(run) if start.method == AUTHORS else run.replay()
                more = {"corpus": start.corpus, "corpus_bytes": (folder / start.file).stat().st_size}
                row = run_metrics(name, run.label, nodes, result, cost, chain=run.chain)
                yield {field: value for field, value in row.items() if field not in CURVES} | more


def run_of(start: Start, name: str, requests: list[Recording], folder: Path, cost: StepCost, *, shape: str) -> Run:
    """Return the run of a method with its corpus."""
    path, vocabulary = folder / start.file, VOCABULARIES[folder.name]
    shared: dict[str, Any] = {"file": name, "method": start.method, "recordings": requests, "nodes": AUTO, "cost": cost}
    shared |= {"keep_memory": True, "vocabulary": vocabulary, "memory_limit": MEMORY_LIMIT, "chain": shape == "chain"}
    if start.method == AUTHORS:
        return AuthorsRun(**shared, corpus=None, table=path)
    if start.method == "sam":
        return SamRun(**shared, corpus=None, text=path)
    if start.method == "mix":
        return Run(**shared, corpus=None, bases=(path,))
    return Run(**shared, corpus=CorpusFile(path, str(find_method(start.method).corpus), tokenizer=""))


def replayed_apart(run: Run) -> ReplayResult:
    """Return the replay of a run in a separate process."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as apart:
        return apart.submit(run.replay).result()
