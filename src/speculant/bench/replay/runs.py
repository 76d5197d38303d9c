"""A run of a replay: the recordings of a file, a method and its settings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from speculant.api.bases import open_bases
from speculant.bench.replay.corpora import CorpusFile
from speculant.bench.replay.player import ReplayResult, replay
from speculant.bench.replay.traces import RECORDED, Recording
from speculant.bench.replay.united import UnitedDrafter
from speculant.bench.systems.peers import PREFIX, find_peer
from speculant.core.drafter import Drafter, Loadable
from speculant.core.errors import UnsupportedError
from speculant.memory.bases import read_base_header
from speculant.registry import METHODS, BuildContext, build_drafter, find_method
from speculant.sizing.step_cost import StepCost


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One method on one file; can be pickled.

    Attributes:
        file: its name in results.
        method: a registered name, or "peer:" and a peer's name.
        recordings: recordings in replay order.
        nodes: maximum nodes per draft; "auto" for what decoding would choose, given `cost`.
        chain: whether drafts are chains; else trees.
        keep_memory: whether the memory is kept across requests.
        vocabulary: number of token ids.
        memory_limit: maximum bytes of the drafter's memory.
        corpus: the memory to start with; None for an empty one.
        settings: settings of the drafter; None for its defaults.
        bases: frozen bases, for a method that takes any.
        unite: a head with recorded acceptance to combine the method with; "" for none.
        cost: cost of target passes; None if not known.
        max_depth: maximum depth of a draft; None for as deep as the method drafts.
    """

    file: str
    method: str
    recordings: Sequence[Recording]
    nodes: int | Literal["auto"]
    keep_memory: bool
    vocabulary: int
    memory_limit: int
    corpus: CorpusFile | None
    settings: Any = None
    chain: bool = False
    bases: tuple[Path, ...] = ()
    unite: str = ""
    cost: StepCost | None = None
    max_depth: int | None = None

    @property
    def label(self) -> str:
        """The drafter's name in results."""
        return f"{self.method}+{RECORDED}{self.unite}" if self.unite else self.method

    @property
    def tokens(self) -> int:
        """The number of output tokens to replay."""
        return sum(len(recording.output) for recording in self.recordings)

    def build(self) -> Drafter:
        """Return a new drafter.

        Raises:
            UnsupportedError: it does not support these settings, or a peer is not installed.
            MemoryFileError: the corpus cannot be used.
        """
        if self.method.startswith(PREFIX):
            return find_peer(self.method)()
        fingerprint, vocabulary = "" if self.corpus is None else self.corpus.tokenizer, self.vocabulary
        if self.bases:  # recordings do not store their tokenizer
            header = read_base_header(self.bases[0])
            fingerprint, vocabulary = header.tokenizer, max(vocabulary, int(header.facts["vocabulary"]))
        method = find_method(self.method)
        drafter = build_drafter(
            method,
            BuildContext(
                vocabulary=vocabulary,
                tokenizer=fingerprint,
                memory_limit=self.memory_limit,
                bases=open_bases(method, self.bases, vocabulary=vocabulary, tokenizer=fingerprint),
                settings=self.settings,
            ),
        )
        if self.corpus is not None:
            assert isinstance(drafter, Loadable)
            drafter.load(self.corpus.path)
        return drafter

    def replay(self, advance: Callable[[int], object] = lambda _tokens: None) -> ReplayResult:
        """Replay the recordings; `advance` is called with the number of output tokens after each request."""
        requests = iter(self.recordings)

        def build() -> Drafter:
            return UnitedDrafter(self.build(), requests, self.unite) if self.unite else self.build()

        renew = None if self.keep_memory else build
        return replay(
            build(),
            self.recordings,
            nodes=self.nodes,
            chain=self.chain,
            cost=self.cost,
            max_depth=self.max_depth,
            renew=renew,
            advance=advance,
        )


def check_method(name: str) -> None:
    """Check whether a method can be replayed, before anything is read.

    Raises:
        UnknownMethodError, UsageError: there is no such method or peer.
        UnsupportedError: it needs a model, or the peer is not installed.
    """
    if name.startswith(PREFIX):
        find_peer(name)()
    elif not find_method(name).replayable:
        fit = ", ".join(method.name for method in METHODS.values() if method.replayable)
        raise UnsupportedError(
            f"the method '{name}' drafts with a model or from the target's logits, which a recorded trace does not "
            f"hold, so replay cannot measure it. Measure it with a model: speculant generate --compare. Replay can "
            f"measure {fit}."
        )


def in_order(recordings: Sequence[Recording], *, shuffled: bool, seed: int, limit: int | None) -> list[Recording]:
    """Return the first `limit` recordings, in the file's order or shuffled by the seed."""
    ordered = list(recordings)
    if shuffled:
        random.Random(seed).shuffle(ordered)
    return ordered[:limit]


def vocabulary_of(recordings: Sequence[Recording]) -> int:
    """Return the smallest vocabulary size that the recordings allow: the largest token id plus one."""
    return 1 + max(int(max(recording.prompt.max(), recording.output.max())) for recording in recordings)
