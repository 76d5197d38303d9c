"""Draws the target's next token as transformers' plain `generate` does.

`HostSampler` runs every logits processor and stopping criterion once per token on the true prefix, in order, so
stateful ones work. `DeviceSampler` serves the common case in which nothing depends on the prefix: only row-wise
processors or none, and no criteria except end of text and length. It draws after every row of a pass on the device and
reads the tokens back in one transfer. Since `torch.multinomial` of one sample is argmax(p / e) with exponential noise
e, noise drawn once per depth yields exactly the tokens of plain decoding, and leaves the random stream in the same
state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process
from transformers.generation.stopping_criteria import StopStringCriteria

from speculant.core.errors import TokenizerError
from speculant.core.prepared_request import PreparedRequest
from speculant.core.sampler import GREEDY, Sampler
from speculant.core.tree import DraftTree
from speculant.drafters.top_tokens import best_token
from speculant.engines.hf.sampling.output_processors import LogitBias

ROW_WISE = (
    LogitBias,
    *(
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
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingPlan:
    """How the tokens of a request are chosen and when its text ends.

    Attributes:
        processors: called in order with the text's ids and its logits, as in transformers.
        criteria: called after every token; those of the next two lines are not among them.
        ends: ids that end the text.
        max_length: maximum number of tokens of the text, including the prompt.
        sample: whether to sample; otherwise greedy.
        generator: the random stream; None for torch's default one.
        keep_scores, keep_logits: whether to keep the processed and the raw logits of every token.
    """

    processors: Sequence[Any] = ()
    criteria: Sequence[Any] = ()
    ends: frozenset[int] = frozenset()
    max_length: int = 1 << 30
    sample: bool = False
    generator: torch.Generator | None = None
    keep_scores: bool = False
    keep_logits: bool = False


class HostSampler(Sampler):
    """Draws each token when the walk reaches it.

    Attributes:
        tokens: committed tokens, without the prompt.
        scores, logits: the processed and raw logits [1, V] of each token, if kept.
        stopped: whether the text ended for any reason other than its length.
        has_criteria: whether there are criteria besides end of text and length.
        end_tokens: ids that end the text.
    """

    def __init__(self, prompt: Tensor, plan: SamplingPlan) -> None:
        """Begin a text.

        Args:
            prompt: Int64[1, T], padding included, as processors and criteria see it.
            plan: how to choose tokens and when to stop.
        """
        self._ids, self._plan = prompt, plan
        self._prompt_length = prompt.shape[1]
        self.tokens: list[int] = []
        self.scores: list[Tensor] = []
        self.logits: list[Tensor] = []
        self.stopped = False
        self.greedy, self.parallel = not plan.sample, False
        self._loaded: Tensor | None = None
        self.has_criteria, self.end_tokens = bool(plan.criteria), plan.ends

    @property
    def keeps_scores(self) -> bool:
        """Whether processed logits are kept."""
        return self._plan.keep_scores

    @property
    def keeps_logits(self) -> bool:
        """Whether raw logits are kept."""
        return self._plan.keep_logits

    @property
    def room(self) -> int:
        return self._plan.max_length - self._prompt_length - len(self.tokens)

    def ids(self) -> Tensor:
        """Return all committed tokens, Int64[1, T], prompt included."""
        fresh = self.tokens[self._ids.shape[1] - self._prompt_length :]
        if fresh:
            new = torch.tensor([fresh], dtype=self._ids.dtype, device=self._ids.device)
            self._ids = torch.cat([self._ids, new], dim=-1)
        return self._ids

    def load(self, logits: Tensor) -> None:
        """Take the logits [N + 1, V] and wait for them, so that timing a pass covers more than its launch."""
        self._loaded = logits
        if logits.is_cuda:
            torch.cuda.current_stream(logits.device).synchronize()

    def draw_all(self, tree: DraftTree) -> Tensor | None:
        return None

    def set_drawn(self, drawn: list[Any]) -> None:
        pass

    def draw(self, row: int) -> int:
        plan, logits = self._plan, self._loaded
        assert logits is not None
        if not (plan.processors or plan.sample or plan.keep_scores or plan.keep_logits):
            return int(best_token(logits[row : row + 1]))
        scores = self._process(row)
        if plan.sample:
            return int(torch.multinomial(scores.softmax(-1), 1, generator=plan.generator))
        return int(best_token(scores))

    def distribution(self, row: int) -> Tensor:
        scores = self._process(row)[0]
        if self.greedy:
            return torch.zeros_like(scores, dtype=torch.float64).scatter_(0, scores.argmax(-1, keepdim=True), 1.0)
        return scores.double().softmax(-1)

    def probabilities(self) -> Tensor | None:
        plan, logits = self._plan, self._loaded
        assert logits is not None
        if plan.keep_scores or plan.keep_logits or not row_wise(plan.processors):
            return None
        scores = logits.float()
        for processor in plan.processors:
            scores = processor(self._ids, scores)
        return scores.softmax(-1)

    def uniforms(self, n: int) -> Tensor:
        return torch.rand(n, generator=self._plan.generator, device=self._ids.device, dtype=torch.float64)

    def _process(self, row: int) -> Tensor:
        """Return the processed logits [1, V] after a row, and keep the requested ones."""
        plan, loaded = self._plan, self._loaded
        assert loaded is not None
        ids = self.ids() if plan.processors else self._ids
        logits = loaded[row : row + 1].to(copy=True, dtype=torch.float32, device=ids.device)
        scores = logits
        for processor in plan.processors:
            scores = processor(ids, scores)
        if plan.keep_logits:
            self.logits.append(logits)
        if plan.keep_scores:
            self.scores.append(scores)
        return scores

    def commit(self, token: int) -> bool:
        self.tokens.append(token)
        self.stopped = token in self.end_tokens
        if self.has_criteria:
            ids, scores = self.ids(), tuple(self.scores) if self._plan.keep_scores else None
            # Every criterion is called, as in plain decoding: stateful ones must see each token.
            answers = [_all(criterion(ids, scores)) for criterion in self._plan.criteria]
            self.stopped = self.stopped or any(answers)
        return self.stopped or self.room <= 0

    def end_round(self) -> None:
        pass


class DeviceSampler(HostSampler):
    """Draws after all rows of a pass at once."""

    def __init__(self, prompt: Tensor, plan: SamplingPlan) -> None:
        super().__init__(prompt, plan)
        self.parallel = True
        self._drawn_tokens: list[int] | None = None
        self._states: list[Tensor] = []
        self._drawn = 0

    def load(self, logits: Tensor) -> None:
        self._loaded, self._drawn_tokens, self._states, self._drawn = logits, None, [], 0

    def draw_all(self, tree: DraftTree) -> Tensor:
        """Draw after every row; reading the tokens is the only synchronisation of host and device in a round."""
        plan, logits = self._plan, self._loaded
        assert logits is not None
        scores = logits.float() if plan.sample or plan.processors else logits
        for processor in plan.processors:
            scores = processor(self._ids, scores)
        if not plan.sample:
            return best_token(scores)
        probabilities = scores.softmax(-1)
        depths = [0, *tree.depths().tolist()]
        source = self._generator(logits.device)
        self._states, noises = [source.get_state()], []
        for _ in range(max(depths) + 1):
            noises.append(torch.empty_like(probabilities[:1]).exponential_(1, generator=plan.generator))
            self._states.append(source.get_state())
        noise = torch.cat(noises)[torch.tensor(depths, device=logits.device)]
        return (probabilities / noise).argmax(-1)

    def set_drawn(self, drawn: list[Any]) -> None:
        self._drawn_tokens = drawn

    def draw(self, row: int) -> int:
        assert self._drawn_tokens is not None
        self._drawn += 1
        return self._drawn_tokens[row]

    def end_round(self) -> None:
        """Reset the random stream so that depths that were not reached consume no noise."""
        if self._states:
            self._generator(self._ids.device).set_state(self._states[self._drawn])

    def _generator(self, device: torch.device) -> torch.Generator:
        if self._plan.generator is not None:
            return self._plan.generator
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            return torch.cuda.default_generators[index]
        return torch.default_generator


def plan_sampling(
    prepared: PreparedRequest,
    *,
    first: Sequence[Any],
    stop: Sequence[str],
    tokenizer: Any,
    generator: torch.Generator | None,
) -> SamplingPlan:
    """Return how the tokens of a request are chosen.

    Args:
        prepared: the request.
        first: processors that are called before its own.
        stop: strings that end the text, in addition to its criteria.
        tokenizer: tokenizer for them, or None.
        generator: the random stream; None for torch's default one.

    Raises:
        TokenizerError: stop strings without a tokenizer.
    """
    if stop and tokenizer is None:
        raise TokenizerError("stop strings need a tokenizer; give one to the speculator or to bind().")
    strings = [StopStringCriteria(tokenizer=tokenizer, stop_strings=list(stop))] if stop else []
    return SamplingPlan(
        processors=[*first, *prepared.processors],
        criteria=[*prepared.criteria, *strings],
        ends=prepared.ends,
        max_length=prepared.max_length,
        sample=prepared.sampling != GREEDY,
        generator=generator,
        keep_scores=prepared.keeps_scores,
        keep_logits=prepared.keeps_logits,
    )


def make_sampler(prompt: Tensor, plan: SamplingPlan) -> HostSampler:
    """Return the fitting sampler: a CPU has no transfer to save, so rows are drawn only when needed."""
    sampler = DeviceSampler if prompt.device.type == "cuda" else HostSampler
    made = sampler(prompt, plan)
    if made.has_criteria or plan.keep_scores or plan.keep_logits or not row_wise(plan.processors):
        return HostSampler(prompt, plan)
    return made


def row_wise(processors: Sequence[Any]) -> bool:
    """Return whether processors treat each row independently of the text."""
    return all(type(processor) in ROW_WISE for processor in processors)


def _all(answer: Any) -> bool:
    """Return a criterion's result, a tensor [1] or a plain bool, as a bool."""
    return bool(answer.all()) if isinstance(answer, Tensor) else bool(answer)
