"""The target's own next token, drawn as transformers' plain `generate` draws it.

`OneByOne` runs every logits processor and stopping criterion once per token on the true prefix, in order, so
stateful ones work. `AllAtOnce` serves the common case in which nothing depends on the prefix: no
processors, or only those that work on a row alone, and no criteria beyond end of text and length. It
chooses for every row of a pass on the device and reads the answers back in one host sync; since
`torch.multinomial` of one sample is argmax(p / e) with e exponential noise, noise drawn once per depth
gives the very tokens, and leaves the random stream where plain decoding leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process, stopping_criteria

from speculant.core.engine import Sampler
from speculant.core.tree import DraftTree
from speculant.engines.hf.topk import best_token

ROW_WISE = tuple(
    getattr(logits_process, name)
    for name in (
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
    )
)


@dataclass(slots=True, kw_only=True)
class Request:
    """One text in the making.

    Attributes:
        ids: Int64[1, T] prompt and committed tokens.
        processors, criteria: transformers' lists, as `generate` prepared them.
        sample: whether to sample; else greedy.
        generator: the random stream; None for torch's default one.
        ending: ids that end the text, max_length: its most tokens; read from the criteria.
        other_criteria: whether there are more criteria than those two.
        scores, raw: per token the processed and the raw logits [1, V], kept if asked for.
        emitted: called with each token.
        fresh: committed tokens that are not in `ids` yet; ended: whether the text is complete.
        stopped: whether anything but its length ended it.
    """

    ids: Tensor
    processors: list[Any]
    criteria: list[Any]
    sample: bool
    generator: torch.Generator | None
    emitted: Callable[[int], None]
    keep_scores: bool = False
    keep_raw: bool = False
    scores: list[Tensor] = field(default_factory=list)
    raw: list[Tensor] = field(default_factory=list)
    ending: frozenset[int] = frozenset()
    max_length: int | None = None
    other_criteria: bool = False
    fresh: list[int] = field(default_factory=list)
    ended: bool = False
    stopped: bool = False

    def __post_init__(self) -> None:
        ending: set[int] = set()
        for criterion in self.criteria:
            if type(criterion) is stopping_criteria.EosTokenCriteria:
                ending |= set(criterion.eos_token_id.tolist())
            elif type(criterion) is stopping_criteria.MaxLengthCriteria:
                length = criterion.max_length
                self.max_length = length if self.max_length is None else min(length, self.max_length)
            else:
                self.other_criteria = True
        self.ending = frozenset(ending)

    @property
    def length(self) -> int:
        """Tokens so far, prompt included."""
        return self.ids.shape[1] + len(self.fresh)

    def room(self) -> int:
        """How many more tokens fit."""
        return 1 << 30 if self.max_length is None else self.max_length - self.length

    def true_ids(self) -> Tensor:
        """Return Int64[1, T] with every committed token."""
        if self.fresh:
            new = torch.tensor([self.fresh], dtype=self.ids.dtype, device=self.ids.device)
            self.ids = torch.cat([self.ids, new], dim=-1)
            self.fresh = []
        return self.ids

    def append(self, token: int) -> bool:
        """Commit a token; return whether the text ends with it."""
        self.fresh.append(token)
        if self.other_criteria:
            ids, scores = self.true_ids(), tuple(self.scores) if self.keep_scores else None
            # Every criterion is asked, as plain decoding does: one that keeps state must see each token.
            answers = [(criterion, bool(criterion(ids, scores).all())) for criterion in self.criteria]
            self.ended = any(answer for _, answer in answers)
            length = stopping_criteria.MaxLengthCriteria
            self.stopped = any(answer for criterion, answer in answers if type(criterion) is not length)
        else:
            self.stopped = token in self.ending
            self.ended = self.stopped or self.room() <= 0
        self.emitted(token)
        return self.ended


class OneByOne:
    """Draws each token when it is its turn."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._logits: Tensor | None = None

    @property
    def room(self) -> int:
        """How many more tokens the text may take."""
        return self._request.room()

    def look(self, logits: Tensor, tree: DraftTree) -> None:
        """Take the logits [N + 1, V] of a pass, once they are there: who times passes must not time their launch."""
        self._logits = logits
        if logits.is_cuda:
            torch.cuda.current_stream(logits.device).synchronize()

    def receive(self, choices: list[int]) -> None:
        """Nothing to do: nothing was chosen ahead."""

    def draw(self, row: int) -> tuple[int, bool]:
        """Process, draw, commit."""
        request, logits = self._request, self._logits
        assert logits is not None
        if not (request.processors or request.sample or request.keep_scores or request.keep_raw):
            token = int(logits[row].argmax())
            return token, request.append(token)
        ids = request.true_ids()
        raw = logits[row : row + 1].to(copy=True, dtype=torch.float32, device=ids.device)
        scores = raw
        for processor in request.processors:
            scores = processor(ids, scores)
        if request.keep_raw:
            request.raw.append(raw)
        if request.keep_scores:
            request.scores.append(scores)
        if request.sample:
            token = int(torch.multinomial(scores.softmax(-1), 1, generator=request.generator))
        else:
            token = int(scores.argmax(-1))
        return token, request.append(token)

    def settle(self) -> None:
        """Nothing to do: only what was committed was drawn."""


class AllAtOnce:
    """Chooses at every row of the pass on the device, and reads the choices back together."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._choices: list[int] = []
        self._states: list[Tensor] = []
        self._drawn = 0

    @staticmethod
    def fits(request: Request) -> bool:
        """Say whether the request has nothing that depends on the prefix."""
        return not (request.other_criteria or request.keep_scores or request.keep_raw) and all(
            type(processor) in ROW_WISE for processor in request.processors
        )

    @property
    def room(self) -> int:
        """How many more tokens the text may take."""
        return self._request.room()

    def look(self, logits: Tensor, tree: DraftTree) -> Tensor:
        """Choose after every row [N + 1]; that they are read is the one place where host and device meet in a round."""
        request = self._request
        if not request.sample:
            return best_token(logits)
        scores = logits.float()
        for processor in request.processors:
            scores = processor(request.ids, scores)
        probabilities = scores.softmax(-1)
        depths = [0, *tree.depths().tolist()]
        source = self._generator(logits.device)
        self._states, self._drawn, noises = [source.get_state()], 0, []
        for _ in range(max(depths) + 1):
            noise = torch.empty_like(probabilities[:1]).exponential_(1, generator=request.generator)
            noises.append(noise)
            self._states.append(source.get_state())
        noise = torch.cat(noises)[torch.tensor(depths, device=logits.device)]
        return (probabilities / noise).argmax(-1)

    def receive(self, choices: list[int]) -> None:
        """Take what was chosen."""
        self._choices = choices

    def draw(self, row: int) -> tuple[int, bool]:
        """Commit what was chosen."""
        self._drawn += 1
        token = self._choices[row]
        return token, self._request.append(token)

    def settle(self) -> None:
        """Give back the noise of depths that were not reached."""
        if self._request.sample:
            self._generator(self._request.ids.device).set_state(self._states[self._drawn])

    def _generator(self, device: torch.device) -> torch.Generator:
        if self._request.generator is not None:
            return self._request.generator
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            return torch.cuda.default_generators[index]
        return torch.default_generator


def make_sampler(request: Request) -> Sampler:
    """Return the sampler that fits: on a CPU there is no sync to save, so rows are drawn as they are needed."""
    if request.ids.device.type == "cuda" and AllAtOnce.fits(request):
        return AllAtOnce(request)
    return OneByOne(request)
