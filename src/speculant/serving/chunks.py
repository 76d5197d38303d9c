"""Streams of chunks for chat and text completions: choices, usage at the end, errors, `[DONE]`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel

from speculant.serving.answers import Service, chunker, metrics_of, usage
from speculant.serving.errors import ApiError
from speculant.serving.exchange import Delta, Exchange
from speculant.serving.schemas import SamplingRequest
from speculant.serving.streams import DONE, event


class ChunkedAnswer(ABC):
    """An answer that is streamed as chunks.

    Attributes:
        prompt: number of tokens of all its prompts.
        completion, reasoning: number of tokens of its texts read so far, and how many of them are reasoning.
        kind: the prefix of its id, and the object type of its chunks.
    """

    kind: tuple[str, str]
    prompt: int
    completion: int
    reasoning: int = 0

    def __init__(self, service: Service, body: SamplingRequest, exchange: Exchange) -> None:
        """Set the request, whose texts are being decoded."""
        self._service, self._body, self._exchange = service, body, exchange

    @abstractmethod
    async def whole(self) -> BaseModel:
        """Return the response, once all texts have ended."""

    @abstractmethod
    def chunks(self, first: tuple[int, Delta]) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the choices of each chunk of the stream, from the first delta on."""

    def begin(self) -> dict[str, Any]:
        """Return the members that only the first chunk has, besides its choices."""
        return {}

    async def events(self, first: tuple[int, Delta]) -> AsyncIterator[bytes]:
        """Yield the events of the stream."""
        (prefix, kind), service, exchange = self.kind, self._service, self._exchange
        with_usage = bool(self._body.stream_options and self._body.stream_options.include_usage)
        chunk = chunker(prefix, kind, service.model, with_usage=with_usage)
        left, begin = len(exchange.tickets), self.begin()
        async for choices in self.chunks(first):
            left -= sum(choice["finish_reason"] is not None for choice in choices)
            # Clients read the first choice of every chunk, unless they asked for a chunk with only usage.
            more = {} if left or with_usage else metrics_of(service, exchange)
            yield event(chunk(choices, **begin, **more))
            begin = {}
        if with_usage:
            tokens = usage(exchange, self.prompt, self.completion, choices=self._body.choices, reasoning=self.reasoning)
            yield event(chunk([], **metrics_of(service, exchange), usage=tokens.model_dump()))
        yield DONE

    def write_failure(self, error: ApiError) -> bytes:
        """Return the final bytes of a stream that failed."""
        return event(error.body()) + DONE
