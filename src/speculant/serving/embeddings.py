"""`POST /v1/embeddings`: embeddings of texts, from the hidden states of the model's last layer."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fastapi import Body, FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from speculant.api.embeddings import EmbeddedText, Pooling, shorten
from speculant.serving.access import note
from speculant.serving.bounds import Rows, Strict
from speculant.serving.embedding_queue import EmbeddingQueue
from speculant.serving.errors import ApiError, api_error
from speculant.serving.openapi import DECODING, errors
from speculant.serving.streams import while_connected
from speculant.serving.token_types import TokenId

if TYPE_CHECKING:
    from speculant.serving.answers import Service
    from speculant.serving.model_pool import ModelPool

MAX_INPUTS = 2048  # per request, as in OpenAI's API
Ids = Annotated[Rows[TokenId], Field(min_length=1)]


class EmbeddingRequest(Strict):
    """`POST /v1/embeddings`.

    Attributes:
        input: a text or token ids, or a list of either.
        model: the served model's name.
        dimensions: number of first dimensions to return, renormalised to length 1.
        encoding_format: "base64" for the bytes of little-endian float32.
        pooling: pooling of the tokens' hidden states: "mean" (default), or "last" for the last token.
        user: written to the server's log.
    """

    input: (
        str
        | Ids
        | Annotated[Rows[str], Field(min_length=1, max_length=MAX_INPUTS)]
        | Annotated[Rows[Ids], Field(min_length=1, max_length=MAX_INPUTS)]
    )
    model: str | None = None
    dimensions: int | None = Field(default=None, ge=1)
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Pooling | None = None
    user: str | None = Field(default=None, max_length=512)

    @property
    def inputs(self) -> list[str | list[int]]:
        """The inputs, each as text or token ids."""
        given: Any = self.input
        return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)


class Embedding(BaseModel):
    """The embedding of one input."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Token usage of a request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """The response to `POST /v1/embeddings`."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def add_embedding_routes(app: FastAPI, models: ModelPool) -> None:
    """Add the endpoint."""

    @app.post("/v1/embeddings", response_model=EmbeddingList, responses=errors(*DECODING))
    async def embeddings(body: Annotated[EmbeddingRequest, Body()], request: Request) -> Response:
        """Return embeddings of texts, from the hidden states of the model's last layer."""
        async with models.lend(body.model, request) as lent:
            return await _embed(lent.service, lent.embeddings, body, request)


async def _embed(service: Service, queue: EmbeddingQueue, body: EmbeddingRequest, request: Request) -> Response:
    if queue.refusal:
        raise ApiError(400, queue.refusal, code="unsupported")
    service.engine.check_alive()
    if body.dimensions is not None and body.dimensions > queue.size:
        message = f"{body.dimensions} dimensions were asked for, and the model has {queue.size}."
        raise ApiError(400, message, param="dimensions", code="invalid_value")
    texts = [EmbeddedText(await _encode(service, each), body.pooling or "mean") for each in body.inputs]
    note(request, prompt_tokens=sum(len(text.ids) for text in texts), user=body.user)
    try:
        await while_connected(request, queue.embed(texts, service.engine.wake))
    except Exception as error:
        raise api_error(error) from error
    answer = await asyncio.to_thread(_render, texts, body, service.model)  # it may be megabytes
    return Response(answer, media_type="application/json")


async def _encode(service: Service, given: str | list[int]) -> list[int]:
    if not given:
        raise ApiError(400, "an input is empty; leave it out.", param="input", code="invalid_value")
    if isinstance(given, str):
        await asyncio.sleep(0)  # thousands of short texts may be tokenized on the event loop
        return await service.prompts.text(given, param="input")
    service.prompts.check(given, param="input")
    return given


def _render(texts: Sequence[EmbeddedText], body: EmbeddingRequest, model: str) -> bytes:
    tokens = sum(len(text.ids) for text in texts)
    data = [Embedding(index=index, embedding=_encode_vector(text, body)) for index, text in enumerate(texts)]
    used = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
    return EmbeddingList(data=data, model=model, usage=used).model_dump_json().encode()


def _encode_vector(text: EmbeddedText, body: EmbeddingRequest) -> list[float] | str:
    assert text.vector is not None
    vector = text.vector if body.dimensions is None else shorten(text.vector, body.dimensions)
    if body.encoding_format == "base64":
        return base64.b64encode(vector.numpy().astype(np.dtype("<f4")).tobytes()).decode()
    found: list[float] = vector.tolist()
    return found
