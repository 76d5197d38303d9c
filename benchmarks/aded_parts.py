"""Building blocks of the ADED study: corpora and recordings as ids, initial tables, and a configurable drafter."""

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
    """Return `count` recordings of a file, beginning at index `start`."""
    return [*read_recordings(data / "traces" / f"{name}.jsonl")][start : start + count]


def chat(data: Path, model: str, llama3: Path | None, folder: Path) -> list[Tokens]:
    """Return the chat corpus of other models' answers, tokenized for llama2 or llama3 and cached in `folder`.

    Answers that share 13 consecutive tokens with a recording are left out.
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
    """Return the table of a corpus, including bi-grams."""
    counter = TrigramCounter(VOCABULARIES[model])
    for text in texts:
        counter.add(text)
    return counter.table()


def prune(table: Frozen, *, successors: int = 255, occurrences: float = 1, bigrams: bool = False) -> Frozen:
    """Return the table with at most `successors` per row, each seen often enough; published tables have no bi-grams."""
    a, b, c, weight = thaw(table)
    vocabulary = len(table.first) - 2
    kept = (weight >= 64 * occurrences * 0.95) & (bigrams | (a < vocabulary))  # weights are stored with 2 % error
    return freeze(a[kept], b[kept], c[kept], weight[kept], vocabulary=vocabulary, longest=successors)


def published_bytes(table: Frozen) -> int:
    """Return the size in bytes of the authors' file format for a table without bi-grams."""
    return 8 + 16 * len(table.second) + 8 * len(table.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a drafter in the study.

    Attributes:
        rule: how rows learn.
        search: how drafts are made.
        window: tokens at the end of the text that are learned again at every draft; 0 to learn each token once.
        prompt: whether the whole prompt is learned, not only its end.
        nodes: maximum nodes per draft, in addition to the budget's limit.
    """

    rule: LearningRule
    search: Search
    window: int = 0
    prompt: bool = False
    nodes: int = NODES


def paper(settings: AdedPaperSettings = PAPER, model: str = "llama2", **changes: Any) -> Parts:
    """Return the published parts, with changes."""
    parts = Parts(rule=settings.rule(), search=published(settings, VOCABULARIES[model]), window=settings.window)
    return replace(parts, **changes)


def improved(**changes: Any) -> Parts:
    """Return the parts of `aded`, without top-k tokens, which recordings do not have."""
    given = AdedSettings()
    search = best(UNLIMITED_DEPTH, escape=given.escape, exploration=given.exploration, cut=given.cut)
    return replace(Parts(rule=given.rule(), search=search, prompt=True), **changes)


class PartsDrafter(Drafter):
    """Drafts from a table with the chosen parts; the memory is kept across requests."""

    def __init__(self, parts: Parts, base: Frozen | None = None) -> None:
        """Start from the table of a corpus, or from an empty one."""
        self.parts = parts
        self.table = TrigramTable(rule=parts.rule, limit=LIMIT, base=base or empty_frozen())

    @property
    def needs(self) -> RequestedOutputs:
        """Request no outputs, since recordings have none."""
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
            self._learn(prompt[-16:], 0)  # the part that the published method uses

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
    """Replay the parts in order with the authors' drafter, in a separate process, since it never frees memory."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(_play_official, texts, parts).result()


def _play_official(texts: Sequence[Tokens], parts: Sequence[Sequence[Recording]]) -> list[ReplayResult]:
    drafter = OfficialAded(texts)
    return [replay(drafter, part, nodes=NODES) for part in parts]


def play(drafter: Drafter, played: Sequence[Recording], nodes: int = NODES) -> dict[str, Any]:
    """Return MAT, its standard error over requests, and mean nodes per draft."""
    return figures(replay(drafter, played, nodes=nodes))


def figures(result: ReplayResult) -> dict[str, Any]:
    """Return the figures of a replay."""
    assert result.drafting is not None
    rounds = np.bincount(result.request).astype(float)
    tokens = np.bincount(result.request, result.accepted + 1.0)
    spread = tokens - result.mat * rounds  # for the standard error of a ratio of sums
    error = np.sqrt((spread**2).sum() * len(rounds) / max(1, len(rounds) - 1)) / rounds.sum()
    return {
        "mat": round(result.mat, 4),
        "standard_error": round(float(error), 4),
        "rounds": result.rounds,
        "mean_nodes": round(float(result.drafting.nodes.mean()), 2),
    }
