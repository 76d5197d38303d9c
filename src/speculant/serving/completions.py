"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from speculant.serving.answers import (
    Collected,
    Service,
    answer_id,
    collect,
    deltas,
    now,
    prompt_entries,
    prompt_logprobs_of,
    usage,
)
from speculant.serving.chunks import ChunkedAnswer
from speculant.serving.endpoint import respond
from speculant.serving.errors import ApiError
from speculant.serving.exchange import Delta, Exchange, Job
from speculant.serving.formats import format_of
from speculant.serving.keys import tenant_of
from speculant.serving.logprobs import PromptEntries, completion_logprobs, entries_of
from speculant.serving.parameters import COMPLETIONS, check_supported
from speculant.serving.responses import CompletionChoice, CompletionResponse
from speculant.serving.schemas import CompletionRequest
from speculant.serving.streams import EventStream


async def create_completion(service: Service, body: CompletionRequest, request: Request) -> BaseModel | EventStream:
    """Create text completions of one or more prompts; the choices of the first prompt come first.

    Raises:
        ApiError: the request cannot be fulfilled.
    """
    check_supported(COMPLETIONS, body.model_dump(exclude_unset=True))
    if body.best_of not in (None, body.choices):
        message = "'best_of' must be equal to 'n': texts are not ranked."
        raise ApiError(400, message, param="best_of", code="unsupported_parameter")
    prompts = body.prompts
    texts = len(prompts) * body.choices
    service.check_shape(body, texts)
    wanted = format_of(None, body.structured_outputs)

    async def begin(exchange: Exchange) -> CompletionAnswer:
        encoded = [await _encode_prompt(service, prompt) for prompt in prompts]
        constraint = await service.compile_constraint(body, wanted)
        for ids in encoded:
            for choice in range(body.choices):
                options = service.options(body, len(ids), choice=choice) | {"constraint": constraint}
                job = Job(
                    prompt=ids,
                    options=options,
                    stop=body.stops,
                    tenant=tenant_of(request),
                    prompt_only=body.token_limit == 0,
                    priority=body.priority or 0,
                )
                exchange.submit(job)
        echoes = [await _echo(service, body, *pair) for pair in zip(prompts, encoded, strict=True)]
        return CompletionAnswer(service, body, exchange, encoded, echoes)

    return await respond(service, body, request, texts=texts, begin=begin)


async def _encode_prompt(service: Service, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        return await service.prompts.text(prompt)
    service.prompts.check(prompt, param="prompt")
    return prompt


async def _echo(service: Service, body: CompletionRequest, prompt: str | list[int], ids: list[int]) -> str:
    """Return the prompt's text to put before a completion, if `echo` is set."""
    if not body.echo:
        return ""
    return prompt if isinstance(prompt, str) else await service.prompts.decode(ids)


class CompletionAnswer(ChunkedAnswer):
    """The completions of one or more prompts."""

    kind = "cmpl", "text_completion"

    def __init__(
        self,
        service: Service,
        body: CompletionRequest,
        exchange: Exchange,
        prompts: list[list[int]],
        echoes: list[str],
    ) -> None:
        super().__init__(service, body, exchange)
        self._body: CompletionRequest = body
        self._prompts = [prompts[index // body.choices] for index in range(len(exchange.tickets))]
        self._echoes = [echoes[index // body.choices] for index in range(len(exchange.tickets))]
        self.prompt, self.completion = sum(map(len, prompts)), 0

    async def whole(self) -> CompletionResponse:
        texts = await collect(self._exchange)
        return CompletionResponse(
            id=answer_id("cmpl"),
            created=now(),
            model=self._service.model,
            choices=[self._choice(index, each) for index, each in enumerate(texts)],
            usage=usage(self._exchange, self.prompt, sum(each.tokens for each in texts), choices=self._body.choices),
            metrics=self._service.metrics(self._exchange.tickets),
        )

    def _choice(self, index: int, found: Collected) -> CompletionChoice:
        echo, logprobs = self._echoes[index], None
        if self._body.alternatives is not None:
            before, new = self._echo_logprobs(index), self._logprobs(found.logprobs, len(echo))
            logprobs = {name: before[name] + values for name, values in new.items()} if before else new
        ids, ticket = self._prompts[index], self._exchange.tickets[index]
        return CompletionChoice.model_validate(
            {
                "index": index,
                "text": echo + found.text,
                "logprobs": logprobs,
                "prompt_logprobs": prompt_logprobs_of(self._service, self._body, ids, ticket),
                "finish_reason": found.finish_reason,
                "token_ids": found.ids if self._body.return_token_ids else None,
                "prompt_token_ids": ids if self._body.return_token_ids else None,
            }
        )

    def _logprobs(self, entries: PromptEntries, offset: int) -> dict[str, Any]:
        text, maximum = self._service.prompts.token_text, self._body.alternatives or 0
        return completion_logprobs(entries, text, maximum=maximum, offset=offset)

    def _echo_logprobs(self, index: int) -> dict[str, Any] | None:
        """Return the prompt's `logprobs`, once its text has begun; None if not requested."""
        if not self._body.echo or self._body.alternatives is None:
            return None
        entries, text = prompt_entries(self._prompts[index], self._exchange.tickets[index]), self._echoes[index]
        return self._logprobs(
            entries, len(text) - sum(len(self._service.prompts.token_text(each)) for each, _ in entries)
        )

    async def chunks(self, first: tuple[int, Delta]) -> AsyncIterator[list[dict[str, Any]]]:
        sent, begun = list(map(len, self._echoes)), set[int]()
        async for index, delta in deltas(self._exchange, first):
            ids = {"token_ids": delta.ids} if self._body.return_token_ids else {}
            if index not in begun:
                begun.add(index)
                before = {"prompt_token_ids": self._prompts[index]} if ids else {}
                if self._body.echo:
                    yield [_choice(index, self._echoes[index], logprobs=self._echo_logprobs(index)) | before]
                else:
                    ids |= before
            self.completion += delta.tokens
            entries, logprobs = entries_of(delta), None
            if entries:
                logprobs = self._logprobs(entries, sent[index])
                sent[index] += sum(map(len, logprobs["tokens"]))
            if delta.text or delta.last or entries or ids:
                yield [_choice(index, delta.text, delta.finish_reason, logprobs=logprobs) | ids]


def _choice(
    index: int, text: str, finish_reason: str | None = None, *, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
