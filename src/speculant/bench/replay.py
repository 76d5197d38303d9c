"""Playing a recorded output as the greedy target: what a drafter would have got accepted, without a model.

The first root is the last prompt token, so every output id counts, end of text too, and the last round
counts only what was left: MAT = tokens / rounds. Memory is kept over the requests of a run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from speculant.drafters.base import Drafter, Verified
from speculant.errors import FileError
from speculant.tree import Int32
from speculant.verifiers.sample_then_follow import sample_then_follow


@dataclass(frozen=True, slots=True)
class Recording:
    """A request and its recorded answer: prompt Int32[T], output Int32[M]."""

    prompt: Int32
    output: Int32


@dataclass(slots=True)
class Replay:
    """What came of it.

    Attributes:
        tokens, rounds, nodes: emitted tokens, target passes, draft nodes over all rounds.
        propose_seconds: of each proposal. learn_seconds: of opening requests and observing rounds, together.
    """

    tokens: int = 0
    rounds: int = 0
    nodes: int = 0
    propose_seconds: list[float] = field(default_factory=list)
    learn_seconds: float = 0.0

    @property
    def mat(self) -> float:
        """Mean tokens per round, bonus included."""
        return self.tokens / self.rounds

    def draft_microseconds(self, percentile: float) -> float:
        """Return a percentile of the time of a proposal."""
        return float(np.percentile(self.propose_seconds, percentile)) * 1e6


class Playback:
    """Says a recorded output token by token."""

    def __init__(self, output: list[int], at: int) -> None:
        self._output, self._at = output, at

    def draw(self, _row: int) -> tuple[int, bool]:
        """Return the next token and whether it is the last."""
        self._at += 1
        return self._output[self._at - 1], self._at == len(self._output)


def read_recordings(path: Path) -> Iterator[Recording]:
    """Read rows of {"prompt_ids", "output_ids"}, one JSON object a line.

    Raises:
        FileError: the file cannot be read, or a row is malformed; the message names file and line.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    row = json.loads(line)
                    prompt, output = (np.array(row[key], np.int32) for key in ("prompt_ids", "output_ids"))
                except (ValueError, KeyError, TypeError) as error:
                    raise FileError(f"{path}:{number} is no row of prompt_ids and output_ids: {error!r}") from error
                yield Recording(prompt, output)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error


def replay(drafter: Drafter, recordings: Iterable[Recording], *, nodes: int) -> Replay:
    """Play the recordings in order against one drafter that drafts at most `nodes` nodes a round."""
    result = Replay()
    clock = time.perf_counter
    for recording in recordings:
        output = recording.output.tolist()
        began = clock()
        session = drafter.open(recording.prompt)
        result.learn_seconds += clock() - began
        done = 0
        while done < len(output):
            began = clock()
            tree = session.propose(nodes)
            result.propose_seconds.append(clock() - began)
            path, tokens, _ = sample_then_follow(tree, Playback(output, done).draw)
            verified = Verified(tree=tree, path=np.array(path, np.int32), tokens=np.array(tokens, np.int32))
            began = clock()
            session.observe(verified)
            result.learn_seconds += clock() - began
            done += len(tokens)
            result.rounds += 1
            result.nodes += len(tree)
        result.tokens += len(output)
        session.close()
    return result
