"""Real cost with real text: true forward passes of any model, next tokens from a recorded output.

The target runs every pass that decoding takes, on the tokens of the recording, and what it says about the next
token is computed and then not listened to. So weights may be random: the cost is the shape's, the acceptance is
the recording's. Drafters that learn from the target's logits are shown none, since those of random weights would
mislead them; the logits they ask for are still taken from the pass, so that this costs what it costs. The LLMA
paper's repository benchmarks this way too (Yang et al. 2023, "Inference with Reference", arXiv 2304.04487).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from speculant.api.result import Run
from speculant.api.speculator import Speculator
from speculant.bench.replay.traces import Recording
from speculant.core.drafter import Drafter, Needs, Session, Verified
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.stats import Stats
from speculant.core.tree import DraftTree, Int32
from speculant.engines.hf.sampler import Request
from speculant.engines.hf.target import TransformersTarget
from speculant.registry import METHODS, find_method


class ForcedSampler:
    """Commits a recorded output, whatever the target says; a `Sampler`."""

    def __init__(self, output: Sequence[int]) -> None:
        self._output, self._at = output, 0
        self._logits: Any = None

    @property
    def room(self) -> int:
        """How many recorded tokens are left."""
        return len(self._output) - self._at

    def look(self, logits: Tensor, tree: DraftTree) -> Tensor | None:
        """Take the logits [N + 1, V]; on an accelerator, choose for all rows at once as plain sampling does."""
        self._logits = logits
        return logits.argmax(-1) if logits.is_cuda else None

    def receive(self, choices: list[int]) -> None:
        """Take what the target would have said, and do not listen."""

    def draw(self, row: int) -> tuple[int, bool]:
        """Return the recorded token, at the cost of choosing the target's own."""
        if not self._logits.is_cuda:
            self._logits[row].argmax().item()
        token = self._output[self._at]
        self._at += 1
        return token, self.room == 0

    def settle(self) -> None:
        """Nothing to do: no random number was drawn."""


def force(speculator: Speculator, prompt: Int32, sampler: ForcedSampler) -> tuple[list[int], Stats]:
    """Decode a request along a recorded output; return its tokens and what happened.

    Args:
        speculator, prompt, sampler: see `forced_run`.
    """
    run = forced_run(speculator, prompt, sampler)
    return [token for done in run.rounds(speculator.sizing()) for token in done.tokens], run.stats


def forced_run(speculator: Speculator, prompt: Int32, sampler: ForcedSampler) -> Run:
    """Return a request that is decoded along a recorded output.

    Args:
        speculator: whose model and drafter are used.
        prompt: Int32[T].
        sampler: of the output, which must be at least a token long.
    """
    model = speculator.model
    ids = torch.from_numpy(prompt.astype(np.int64))[None].to(model.device)
    return Run(
        TransformersTarget(model, speculator.abilities, ids, fast=speculator.fast),
        Request(ids=ids, processors=[], criteria=[], sample=False, generator=None, emitted=lambda _: None),
        Withheld(speculator.drafter),
        seed=0,
        streamer=None,
        stats=Stats(method=speculator.method, prompt_tokens=len(prompt)),
        sampler=sampler,
    )


class Withheld:
    """A drafter to which the target's logits are not shown."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    @property
    def needs(self) -> Needs:
        """What it asks for, though it gets none of it."""
        return self._drafter.needs

    def open(self, prompt: Int32, *, target: Any = None, seed: int = 0) -> Session:
        return _WithheldSession(self._drafter.open(prompt, target=target, seed=seed))

    def save(self, path: Path) -> None:
        self._drafter.save(path)

    def load(self, path: Path) -> None:
        self._drafter.load(path)


class _WithheldSession:
    def __init__(self, session: Session) -> None:
        self._session = session

    def propose(self, max_nodes: int) -> DraftTree:
        return self._session.propose(max_nodes)

    def observe(self, verified: Verified) -> None:
        self._session.observe(replace(verified, top_ids=None, top_logits=None, hidden=None))

    def close(self) -> None:
        self._session.close()


class ForcingProcessor(LogitsProcessor):  # type: ignore[misc]
    """Makes the recorded next token the likeliest, for decoding loops that are not ours.

    No token is forbidden: transformers' prompt lookup asks the processors which candidates are, and would learn the
    recorded text from the answer.
    """

    def __init__(self, prompt_tokens: int, output: Sequence[int]) -> None:
        self._prompt_tokens, self._output = prompt_tokens, output

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Raise the score [1, V] of the token that stands at this position; drafts past the end are left alone."""
        place = input_ids.shape[1] - self._prompt_tokens
        if place < len(self._output):
            scores[:, self._output[place]] = torch.finfo(scores.dtype).max
        return scores


def check_forced(method: str) -> None:
    """Say before anything is loaded whether a method can be measured in a forced run.

    Raises:
        UnsupportedError: it learns from the target's logits, or drafts with another model.
    """
    if method == "hf:assisted":
        raise UnsupportedError(
            "hf:assisted drafts with a model, which would have to be the recorded one's companion. Leave it out, or "
            "measure it without --forced."
        )
    if method in METHODS and not find_method(method).replayable:
        fit = ", ".join(each.name for each in METHODS.values() if each.replayable)
        raise UnsupportedError(
            f"the method '{method}' drafts from the target's logits, which in a forced run are not those of the "
            f"recorded text. Measure it without --forced. Forced runs can measure {fit}."
        )


def fit_vocabulary(recordings: Sequence[Recording], vocabulary: int) -> tuple[list[Recording], bool]:
    """Return the recordings with ids that a model has, and whether they had to be mapped.

    Where an id is too large, the ids that occur are numbered from 0: a drafter sees only which are equal.

    Args:
        recordings: of all files of a run, so that an id means the same in all.
        vocabulary: the model's number of ids.

    Raises:
        UsageError: more ids occur than the model has.
    """
    texts = [text for recording in recordings for text in (recording.prompt, recording.output)]
    if max(int(text.max()) for text in texts) < vocabulary:
        return list(recordings), False
    found = np.unique(np.concatenate(texts))
    if len(found) > vocabulary:
        raise UsageError(
            f"the recordings hold {len(found)} different token ids, the model has {vocabulary}. Use a config whose "
            "vocab_size is that of the recorded model, or fewer recordings (--limit)."
        )
    number = np.zeros(int(found[-1]) + 1, np.int32)
    number[found] = np.arange(len(found), dtype=np.int32)
    return [replace(each, prompt=number[each.prompt], output=number[each.output]) for each in recordings], True
