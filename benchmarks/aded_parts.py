"""ADED taken apart, for the study: corpora and recordings as ids, initial tables, and a drafter of chosen parts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from aded_searches import Search, best, published
from mix_corpora import VOCABULARIES, Tokens, excluded, llama2_encoder, llama3_encoder
from speculant.bench.replay.player import ReplayResult, replay
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.bench.systems.peers import OfficialAded
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.tree import DraftTree, Int32
from speculant.drafters.aded.corpus import TrigramCounter
from speculant.drafters.aded.drafter import AdedSettings
from speculant.drafters.aded.frozen import Frozen, empty_frozen, freeze, thaw
from speculant.drafters.aded.paper import AdedPaperSettings
from speculant.drafters.aded.rows import NONE
from speculant.drafters.aded.table import LearningRule, TrigramTable

NODES = 64
UNLIMITED_DEPTH = 64
LIMIT = 4 << 30
PAPER = AdedPaperSettings()


def recordings(data: Path, name: str, *, start: int = 0, count: int) -> list[Recording]:
    """Return `count` recordings of a file from the place `start` on."""
    return [*read_recordings(data / "traces" / f"{name}.jsonl")][start : start + count]


def chat(data: Path, model: str, llama3: Path | None, folder: Path) -> list[Tokens]:
    """Return other models' answers in the tokens of llama2 or llama3, kept in `folder` once they are encoded.

    Answers that share 13 tokens in a row with a recording are left out.
    """
    kept = folder / f"chat-{model}.npz"
    if not kept.exists():
        if model == "llama3" and llama3 is None:
            raise SystemExit("name Llama 3's tokenizer.model by --llama3; the package llama-models has it.")
        if model == "llama3" and llama3 is not None:
            encode = llama3_encoder(llama3)
        else:
            encode = llama2_encoder(data / "tokenizers/llama2-32k.model")
        traces = "llama31-8b-*.jsonl" if model == "llama3" else "vicuna-7b-mtbench.jsonl"
        banned = excluded({path.stem: [*read_recordings(path)] for path in (data / "traces").glob(traces)})
        found = [ids for text in _answers(data) if not banned.shares(ids := np.array(encode(text), np.int32))]
        np.savez(kept, ids=np.concatenate(found), ends=np.cumsum([len(ids) for ids in found]))
    held = np.load(kept)
    return np.split(held["ids"], held["ends"][:-1])


def _answers(data: Path) -> Iterator[str]:
    for path in sorted((data / "corpora").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from (json.loads(line)["output"] for line in lines)


def count(texts: Sequence[Tokens], model: str) -> Frozen:
    """Return the table of a corpus, bi-grams included."""
    counter = TrigramCounter(VOCABULARIES[model])
    for text in texts:
        counter.add(text)
    return counter.table()


def prune(table: Frozen, *, successors: int = 255, occurrences: float = 1, bigrams: bool = False) -> Frozen:
    """Return the table with only so many successors a row, seen so often; published tables have no bi-grams."""
    a, b, c, weight = thaw(table)
    vocabulary = len(table.first) - 2
    kept = (weight >= 64 * occurrences * 0.95) & (bigrams | (a < vocabulary))  # weights are stored with 2 % error
    return freeze(a[kept], b[kept], c[kept], weight[kept], vocabulary=vocabulary, longest=successors)


def published_bytes(table: Frozen) -> int:
    """Return the bytes of the authors' file for a table without bi-grams."""
    return 8 + 16 * len(table.second) + 8 * len(table.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a drafter of the study is made of.

    Attributes:
        rule: how rows learn.
        search: how drafts are made.
        window: tokens at the end of the text that are learned again at every draft; 0 for each token once.
        prompt: whether the whole prompt is learned, not only its end.
        nodes: the most nodes of a draft, below those of the budget.
    """

    rule: LearningRule
    search: Search
    window: int = 0
    prompt: bool = False
    nodes: int = NODES


def paper(settings: AdedPaperSettings = PAPER, model: str = "llama2", **changes: Any) -> Parts:
    """Return the published parts, some of them changed."""
    parts = Parts(rule=settings.rule(), search=published(settings, VOCABULARIES[model]), window=settings.window)
    return replace(parts, **changes)


def improved(**changes: Any) -> Parts:
    """Return the parts of `aded`, which learns no top-k tokens from recordings."""
    given = AdedSettings()
    search = best(UNLIMITED_DEPTH, escape=given.escape, exploration=given.exploration, cut=given.cut)
    return replace(Parts(rule=given.rule(), search=search, prompt=True), **changes)


class PartsDrafter(Drafter):
    """A table with chosen parts; the memory is kept across requests."""

    def __init__(self, parts: Parts, base: Frozen | None = None) -> None:
        """Begin with a corpus's table, or with none."""
        self.parts = parts
        self.table = TrigramTable(rule=parts.rule, limit=LIMIT, base=base or empty_frozen())

    @property
    def needs(self) -> RequestedOutputs:
        """Nothing, since recordings hold nothing else."""
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        """Begin a request."""
        return _PartsSession(self, start.prompt)


class _PartsSession(Session):
    def __init__(self, drafter: PartsDrafter, prompt: Int32) -> None:
        self._table, self._parts = drafter.table, drafter.parts
        self._span = max(2, self._parts.window)
        self._tail = prompt[-self._span :]
        if self._parts.prompt:
            self._learn(prompt, 0)
        elif not self._parts.window:
            self._learn(prompt[-16:], 0)  # as much as the published method sees of it

    def _learn(self, text: Int32, start: int) -> None:
        if self._parts.rule.gain:
            self._table.learn(text, start)

    def propose(self, budget: Budget) -> DraftTree:
        if self._parts.window:
            self._learn(self._tail, 0)
        before = int(self._tail[-2]) if len(self._tail) > 1 else NONE
        return self._parts.search(self._table, before, int(self._tail[-1]), min(budget.nodes, self._parts.nodes))

    def observe(self, verified: Verified) -> None:
        text = np.concatenate([self._tail, verified.tokens])
        if not self._parts.window:
            self._learn(text, len(self._tail))
        self._tail = text[-self._span :]

    def close(self) -> None:
        pass


def play_official(texts: Sequence[Tokens], *parts: Sequence[Recording]) -> list[ReplayResult]:
    """Replay parts in a row with the authors' drafter, in a process of its own, since it frees no memory."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(_play_official, texts, parts).result()


def _play_official(texts: Sequence[Tokens], parts: Sequence[Sequence[Recording]]) -> list[ReplayResult]:
    drafter = OfficialAded(texts)
    return [replay(drafter, part, nodes=NODES) for part in parts]


def play(drafter: Drafter, played: Sequence[Recording], nodes: int = NODES) -> dict[str, Any]:
    """Return MAT, its standard error over requests, and mean nodes a draft."""
    return figures(replay(drafter, played, nodes=nodes))


def figures(result: ReplayResult) -> dict[str, Any]:
    """Return the figures of a replay."""
    assert result.drafting is not None
    rounds = np.bincount(result.request).astype(float)
    tokens = np.bincount(result.request, result.accepted + 1.0)
    spread = tokens - result.mat * rounds  # of the ratio of sums
    error = np.sqrt((spread**2).sum() * len(rounds) / max(1, len(rounds) - 1)) / rounds.sum()
    return {
        "mat": round(result.mat, 4),
        "standard_error": round(float(error), 4),
        "rounds": result.rounds,
        "mean_nodes": round(float(result.drafting.nodes.mean()), 2),
    }
