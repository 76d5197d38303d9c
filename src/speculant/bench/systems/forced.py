"""Real cost with real text: actual forward passes of any model, with next tokens taken from a recorded output.

The target runs every pass that decoding takes, on the tokens of the recording; its logits are computed and then
ignored. So weights may be random: the cost is that of the model's shape, the acceptance that of the recording. Drafters
that learn from the target's logits get none, since random ones would mislead them; the top logits that they request are
still computed, so that their cost is included. The LLMA paper's repository benchmarks this way (Yang et al. 2023,
"Inference with Reference", arXiv 2304.04487).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from speculant.api.result import Generation, Stream
from speculant.api.speculator import Speculator
from speculant.bench.replay.traces import Recording
from speculant.core.drafter import Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.stats import Stats
from speculant.core.tree import DraftTree, Int32
from speculant.core.wrapped_session import WrappedSession
from speculant.decoding.sequence import Sequence as DecodedSequence
from speculant.decoding.step import DecodingComponents
from speculant.drafters.top_tokens import best_token
from speculant.engines.hf.sampling.sampler import HostSampler, SamplingPlan
from speculant.registry import METHODS, find_method


class ForcedSampler(HostSampler):
    """Commits a recorded output, whatever the target's logits are."""

    def __init__(self, prompt: Tensor, output: Sequence[int]) -> None:
        """Start an output of at least one token after a prompt Int64[1, T]."""
        super().__init__(prompt, SamplingPlan())
        self._output = output

    @property
    def room(self) -> int:
        return len(self._output) - len(self.tokens)

    def load(self, logits: Tensor) -> None:
        self._loaded = logits

    def draw_all(self, tree: DraftTree) -> Tensor | None:
        """Return the argmax of all rows on an accelerator, at the cost of plain sampling; it is not used."""
        assert self._loaded is not None
        return self._loaded.argmax(-1) if self._loaded.is_cuda else None

    def draw(self, row: int) -> int:
        """Return the recorded token, at the cost of computing the target's own."""
        assert self._loaded is not None
        if not self._loaded.is_cuda:
            best_token(self._loaded[row : row + 1]).item()
        return self._output[len(self.tokens)]

    def commit(self, token: int) -> bool:
        self.tokens.append(token)
        return self.room == 0


def make_forced_request(
    speculator: Speculator,
    prompt: Int32,
    output: Sequence[int],
    *,
    sampler: Callable[[Tensor, Sequence[int]], ForcedSampler] = ForcedSampler,
) -> Generation:
    """Return a request that is decoded along a recorded output of at least one token, by `make_forced_components`."""
    ids = torch.from_numpy(prompt.astype(np.int64))[None].to(speculator.engine.device)
    cache, forced = speculator.engine.open(ids), sampler(ids, output)
    stats = Stats(method=speculator.method, prompt_tokens=len(prompt))
    return Generation(DecodedSequence(cache, forced, SessionRequest(prompt=prompt), stats), forced, target=cache)


def make_forced_components(speculator: Speculator, size: int = 1) -> DecodingComponents:
    """Return the components for forced requests: the speculator's, with a drafter that gets no target logits."""
    parts = speculator.parts(size)
    return replace(parts, drafter=NoLogitsDrafter(parts.drafter))


def force(speculator: Speculator, prompt: Int32, output: Sequence[int]) -> tuple[list[int], Stats]:
    """Decode a request along a recorded output of at least one token; return its tokens and statistics."""
    generation = make_forced_request(speculator, prompt, output)
    for _ in Stream(generation, make_forced_components(speculator)):
        pass
    return generation.result.ids, generation.result.stats


class NoLogitsDrafter(Drafter):
    """A drafter that gets no logits or hidden states of the target, which are still computed."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    @property
    def needs(self) -> RequestedOutputs:
        return self._drafter.needs

    def open(self, start: SessionRequest) -> Session:
        return NoLogitsSession(self._drafter.open(start))


class NoLogitsSession(WrappedSession):
    """A session of such a drafter."""

    def observe(self, verified: Verified) -> None:
        self.inner.observe(replace(verified, top_ids=None, top_logits=None, hidden=None))


class ForcingProcessor(LogitsProcessor):  # type: ignore[misc]
    """Makes the recorded next token the most probable one, for decoding loops other than ours.

    No token is forbidden: transformers' prompt lookup asks the processors for forbidden candidates, and would learn the
    recorded text from the answer.
    """

    def __init__(self, prompt_tokens: int, output: Sequence[int]) -> None:
        self._prompt_tokens, self._output = prompt_tokens, output

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Raise the score [1, V] of the recorded token at this position; drafts past the end are unchanged."""
        place = input_ids.shape[1] - self._prompt_tokens
        if place < len(self._output):
            scores[:, self._output[place]] = torch.finfo(scores.dtype).max
        return scores


def check_forced(method: str) -> None:
    """Check whether a method can be measured in a forced run, before anything is loaded.

    Raises:
        UnsupportedError: it drafts with another model, or from the target's own passes.
    """
    fit = f"Forced runs can measure {', '.join(each.name for each in METHODS.values() if each.replayable)}."
    if method == "hf:assisted" or (method in METHODS and find_method(method).takes_draft_model):
        raise UnsupportedError(
            f"{method} drafts with a model, which would have to continue the recorded text as the recorded model did. "
            "A recording does not say which vocabulary its ids are of, and they may have been numbered anew. Measure "
            f"it without --forced. {fit}"
        )
    if method in METHODS and not find_method(method).replayable:
        raise UnsupportedError(
            f"the method '{method}' drafts from the target's own passes, which in a forced run do not predict the "
            f"recorded text. Measure it without --forced. {fit}"
        )


def fit_vocabulary(recordings: Sequence[Recording], vocabulary: int) -> tuple[list[Recording], bool]:
    """Return the recordings with ids in the model's vocabulary, and whether they had to be mapped.

    If an id is too large, the occurring ids are renumbered from 0: a drafter only sees which are equal.

    Args:
        recordings: recordings of all files of a run, so that an id means the same in all.
        vocabulary: the model's number of ids.

    Raises:
        UsageError: there are more distinct ids than the model has.
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
