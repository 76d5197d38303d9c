"""Common parts of the text endpoints: options, seeds, usage, metrics, and building responses from deltas."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from speculant.core.stats import Stats, compute_mat
from speculant.options.kinds import read_temperature
from speculant.serving.errors import ApiError
from speculant.serving.exchange import Delta, Exchange, Ticket
from speculant.serving.formats import AnswerFormat
from speculant.serving.logprobs import Entries, PromptEntries, entries_of, prompt_logprobs
from speculant.serving.responses import CompletionDetails, PromptDetails, RequestMetrics, SpeculativeMetrics, Usage
from speculant.serving.schemas import SamplingRequest

if TYPE_CHECKING:
    from speculant.api.constraints import CompiledConstraint
    from speculant.options.serving import ServingOptions
    from speculant.serving.engine_loop import EngineLoop
    from speculant.serving.grammars import GrammarCompiler
    from speculant.serving.media import MediaReader
    from speculant.serving.prompts import PromptEncoder


NO_TOKEN = -1  # an id that never ends a text


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The state shared by the endpoints.

    Attributes:
        model: the served model's name.
        created: creation time, in seconds since the epoch.
        engine, media, prompts, grammars, settings: the parts of the server.
        predicts: whether drafts can be copied from a `prediction`.
        max_nodes: maximum nodes of a draft.
    """

    model: str
    created: int
    engine: EngineLoop
    media: MediaReader
    prompts: PromptEncoder
    grammars: GrammarCompiler
    settings: ServingOptions
    predicts: bool
    max_nodes: int

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a text, including its prompt."""
        settings = self.settings
        prompt = settings.max_prompt_tokens or settings.max_new_tokens
        return self.prompts.positions or prompt + settings.max_new_tokens

    @property
    def drafts(self) -> bool:
        """Whether texts are decoded with drafts."""
        speculator = self.engine.speculator
        return speculator.method != "none" and speculator.engine.capabilities.drafts

    def check_shape(self, request: SamplingRequest, texts: int) -> None:
        """Check what can be checked before the prompt is read.

        Raises:
            ApiError: too many choices or tokens, or stream options without streaming.
        """
        if texts > self.settings.max_choices:
            message = f"{texts} texts were asked for, and a request may have {self.settings.max_choices}."
            raise ApiError(400, message, param="n", code="invalid_value")
        maximum = request.token_limit
        allowed, positions = self.settings.max_new_tokens, self.prompts.positions
        if maximum is not None and maximum > allowed and (positions is None or allowed <= positions):
            message = f"{maximum} new tokens were asked for, and the server allows {allowed}."
            raise ApiError(400, message, param="max_tokens", code="invalid_value")
        if maximum is not None and positions is not None and maximum > positions:
            message = (
                f"{maximum} new tokens were asked for, and the model has {positions} positions, the prompt's included."
            )
            raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
        if maximum == 0 and not request.reads_prompt:
            message = "'max_tokens' must be 1 or more; in completions it may be 0 with 'echo' or 'prompt_logprobs'."
            raise ApiError(400, message, param="max_tokens", code="invalid_value")
        if request.prompt_logprobs is not None and request.stream:
            message = "'prompt_logprobs' is not available in streams; leave out \"stream\"."
            raise ApiError(400, message, param="prompt_logprobs", code="invalid_value")
        if request.stream_options is not None and not request.stream:
            message = "'stream_options' is for streams; add \"stream\": true."
            raise ApiError(400, message, param="stream_options", code="invalid_value")

    def options(self, request: SamplingRequest, prompt: int, *, choice: int = 0) -> dict[str, Any]:
        """Return the options of `Speculator.prepare`.

        Args:
            request: the request.
            prompt: number of tokens of the prompt.
            choice: index of the text, which is added to the seed.

        Raises:
            ApiError: prompt and text exceed the model's positions, or the minimum length exceeds the maximum.
        """
        positions, maximum = self.prompts.positions, request.token_limit
        left = self.settings.max_new_tokens if positions is None else positions - prompt
        if maximum is not None and maximum > left:
            raise ApiError(
                400,
                f"the model has {positions} positions: {prompt} tokens of the prompt and {maximum} new ones do not "
                "fit.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        limit = min(left, self.settings.max_new_tokens) if maximum is None else max(1, maximum)
        if (request.min_tokens or 0) > limit:
            message = f"'min_tokens' is {request.min_tokens}, and the text may have {limit} tokens."
            raise ApiError(400, message, param="min_tokens", code="invalid_value")
        bias = {int(token): value for token, value in (request.logit_bias or {}).items()}
        self.prompts.check_vocabulary([*bias], "logit_bias")
        options: dict[str, Any] = {
            "max_new_tokens": limit,
            "repetition_penalty": request.repetition_penalty,
            "logit_bias": bias or None,
            "presence_penalty": request.presence_penalty or None,
            "frequency_penalty": request.frequency_penalty or None,
            "logprobs": request.alternatives,
            "prompt_logprobs": request.prompt_alternatives,
            "eos_token_id": self._ends(request),
            "min_new_tokens": request.min_tokens or None,
            "skip_special_tokens": request.skip_special_tokens,
            "spaces_between_special_tokens": request.spaces_between_special_tokens,
        }
        temperature = 1.0 if request.temperature is None else read_temperature(request.temperature)
        if not temperature:  # no other option can exclude the most probable token
            return options | {"temperature": 0}
        return options | {
            "temperature": temperature,
            "top_p": request.top_p,
            "top_k": None if request.top_k is None else max(0, request.top_k),
            "min_p": request.min_p,
            "seed": None if request.seed is None else request.seed + choice,
        }

    async def compile_constraint(
        self, request: SamplingRequest, wanted: AnswerFormat | None
    ) -> CompiledConstraint | None:
        """Return the compiled constraint of a request's texts; None if there is none.

        Raises:
            ApiError: the constraint is refused.
        """
        if wanted is None:
            return None
        ends = self._ends(request)
        if ends == [NO_TOKEN]:
            message = "'ignore_eos' with a constraint needs 'stop_token_ids': a constrained text must be able to end."
            raise ApiError(400, message, param="ignore_eos")
        return await self.grammars.compile(wanted, ends)

    def _ends(self, request: SamplingRequest) -> list[int] | None:
        """Return the tokens that end a text; None for those of the model's generation config."""
        ends = None if request.generation_config is None else request.generation_config.ends
        if ends is not None:
            self.prompts.check_vocabulary(ends, "generation_config.eos_token_id")
        if not request.stop_token_ids and not request.ignore_eos:
            return ends
        self.prompts.check_vocabulary(request.stop_token_ids or (), "stop_token_ids")
        own = [] if request.ignore_eos else self.prompts.ends if ends is None else ends
        return [*own, *(request.stop_token_ids or ())] or [NO_TOKEN]

    def metrics(self, tickets: list[Ticket]) -> RequestMetrics | None:
        """Return the metrics of a request; None if not requested."""
        if not self.settings.per_request_metrics:
            return None
        stats = tickets[0].stats if len(tickets) == 1 else None
        return RequestMetrics(speculative_decoding=None if stats is None else speculative(stats, self.max_nodes))


@dataclass(slots=True)
class Collected:
    """A complete text, collected from its deltas."""

    text: str = ""
    tokens: int = 0
    finish_reason: str = "stop"
    logprobs: Entries = field(default_factory=list)
    ids: list[int] = field(default_factory=list)


async def collect(exchange: Exchange) -> list[Collected]:
    """Collect the complete texts of an exchange.

    Raises:
        ApiError: a text failed.
    """
    found = [Collected() for _ in exchange.tickets]
    async for index, delta in deltas(exchange):
        own = found[index]
        own.text += delta.text
        own.tokens += delta.tokens
        own.logprobs += entries_of(delta)
        own.ids += delta.ids
        own.finish_reason = delta.finish_reason or own.finish_reason
    return found


async def deltas(exchange: Exchange, first: tuple[int, Delta] | None = None) -> AsyncIterator[tuple[int, Delta]]:
    """Yield the deltas of all texts of an exchange, with the index of their choice, until all have ended.

    Args:
        exchange: the exchange of a request.
        first: the first delta, if it has been read already.
    """
    left = len(exchange.tickets)
    while left:
        index, delta = await exchange.get() if first is None else first
        first = None
        left -= delta.last
        yield index, delta


def speculative(stats: Stats, max_nodes: int) -> SpeculativeMetrics:
    """Return the drafting metrics, in vLLM's format."""
    accepted = [*stats.accepted_by_depth, 0]  # [j - 1] counts the rounds that accepted at least j tokens
    histogram = [stats.rounds - accepted[0], *(a - b for a, b in itertools.pairwise(accepted))]
    return SpeculativeMetrics(
        mean_acceptance_length=1 + stats.accepted / max(1, stats.rounds),
        draft_acceptance_rate=stats.accepted / max(1, stats.drafted),
        acceptance_histogram=histogram,
        num_spec_steps=stats.rounds,
        num_accepted_draft_tokens=stats.accepted,
        num_draft_tokens=stats.drafted,
        num_spec_tokens=max_nodes,
    )


def usage(exchange: Exchange, prompt: int, completion: int, *, choices: int, reasoning: int = 0) -> Usage:
    """Return the token usage of a request; a prompt counts once for all choices, with its first choice's cache hits."""
    first = [ticket.stats for ticket in exchange.tickets[::choices]]
    cached = sum(stats.reused_tokens for stats in first if stats is not None)
    media = Counter[str]()
    for ticket in exchange.tickets[::choices]:
        media.update(ticket.job.media_tokens)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(
            cached_tokens=cached,
            image_tokens=media["image"],
            audio_tokens=media["audio"],
            video_tokens=media["video"],
        ),
        completion_tokens_details=CompletionDetails(reasoning_tokens=reasoning),
    )


def prompt_logprobs_of(
    service: Service, body: SamplingRequest, ids: Sequence[int], ticket: Ticket
) -> list[dict[str, Any] | None] | None:
    """Return a prompt's `prompt_logprobs`, once its text has begun; None if not requested."""
    if body.prompt_logprobs is None:
        return None
    return prompt_logprobs(prompt_entries(ids, ticket), service.prompts.token_text, maximum=body.prompt_logprobs)


def prompt_entries(ids: Sequence[int], ticket: Ticket) -> PromptEntries:
    """Return the tokens of a prompt with their log-probabilities, which are available once its text has begun."""
    return list(zip(ids, ticket.prompt_logprobs or [], strict=True))


def metrics_of(service: Service, exchange: Exchange) -> dict[str, Any]:
    """Return the member of a stream's last chunk that holds the metrics; empty if not requested."""
    metrics = service.metrics(exchange.tickets)
    return {} if metrics is None else {"metrics": metrics.model_dump()}


def outcome(exchange: Exchange) -> dict[str, Any]:
    """Return the facts to log about an exchange's decoding."""
    found = [ticket.stats for ticket in exchange.tickets if ticket.stats is not None]
    rounds = sum(stats.rounds for stats in found)
    tokens, begun = sum(stats.tokens for stats in found), sum(stats.tokens > 0 for stats in found)
    return {
        "completion_tokens": tokens,
        "rounds": rounds,
        "mat": round(compute_mat(tokens, rounds, texts=begun), 2) if rounds else None,
    }


def now() -> int:
    """Return the current time, in seconds since the epoch."""
    return int(time.time())


def answer_id(prefix: str) -> str:
    """Return a new id."""
    return f"{prefix}-{uuid.uuid4().hex}"


def chunker(prefix: str, kind: str, model: str, *, with_usage: bool) -> Callable[..., dict[str, Any]]:
    """Return a function that builds the chunks of a stream from their choices, and from usage for the last one."""
    head = {"id": answer_id(prefix), "object": kind, "created": now(), "model": model}

    def chunk(choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        body = head | {"choices": choices}
        return body | ({"usage": None} if with_usage else {}) | more

    return chunk
