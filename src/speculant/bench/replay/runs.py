"""Runs of a replay: a file's recordings, a method and its settings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speculant.bench.replay.corpora import Corpus
from speculant.bench.replay.player import Played, replay
from speculant.bench.replay.traces import Recording
from speculant.bench.systems.peers import PREFIX, find_peer
from speculant.core.drafter import Drafter, Persistent
from speculant.core.errors import UnsupportedError
from speculant.registry import METHODS, find_method


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One method on one file; can be sent to another process.

    Attributes:
        file: how the file is called in the results.
        method: a name of the registry, or "peer:" and a peer's.
        recordings: in the order in which they are played.
        nodes: most nodes per draft.
        keep_memory: whether the memory is kept over requests.
        vocabulary: number of token ids.
        memory_limit: bytes the drafter's memory may take.
        corpus: what the drafter begins with; None for an empty memory.
    """

    file: str
    method: str
    recordings: Sequence[Recording]
    nodes: int
    keep_memory: bool
    vocabulary: int
    memory_limit: int
    corpus: Corpus | None

    @property
    def tokens(self) -> int:
        """Output tokens to play."""
        return sum(len(recording.output) for recording in self.recordings)

    def build(self) -> Drafter:
        """Make the drafter.

        Raises:
            UnsupportedError: it cannot be had with these settings, or a peer is not installed.
            MemoryFileError: the corpus cannot be used.
        """
        if self.method.startswith(PREFIX):
            return find_peer(self.method)()
        fingerprint = "" if self.corpus is None else self.corpus.tokenizer
        drafter = find_method(self.method).build(
            vocabulary=self.vocabulary, tokenizer=fingerprint, memory_limit=self.memory_limit
        )
        if self.corpus is not None:
            assert isinstance(drafter, Persistent)  # methods that begin with a corpus have a memory
            drafter.load(self.corpus.path)
        return drafter

    def play(self, advance: Callable[[int], object] = lambda _tokens: None) -> Played:
        """Play it; `advance` is told how many output tokens were played."""
        renew = None if self.keep_memory else self.build
        return replay(self.build(), self.recordings, nodes=self.nodes, renew=renew, advance=advance)


def check_method(name: str) -> None:
    """Say before anything is read whether a method can be replayed.

    Raises:
        UnknownMethodError, UsageError: there is no such method or peer.
        UnsupportedError: it needs a model, or the peer is not installed.
    """
    if name.startswith(PREFIX):
        find_peer(name)()
    elif not find_method(name).replayable:
        fit = ", ".join(method.name for method in METHODS.values() if method.replayable)
        raise UnsupportedError(
            f"the method '{name}' learns from the target's logits, which a recorded trace does not hold, so replay "
            f"cannot measure it. Measure it with a model: speculant generate --compare. Replay can play {fit}."
        )


def in_order(recordings: Sequence[Recording], *, shuffled: bool, seed: int, limit: int | None) -> list[Recording]:
    """Return the first `limit` recordings, in the file's order or shuffled by the seed."""
    ordered = list(recordings)
    if shuffled:
        random.Random(seed).shuffle(ordered)
    return ordered[:limit]


def vocabulary_of(recordings: Sequence[Recording]) -> int:
    """Return the largest token id and one: the fewest ids there can be."""
    return 1 + max(int(max(recording.prompt.max(), recording.output.max())) for recording in recordings)
