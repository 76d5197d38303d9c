"""The application: its routes and its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from speculant import __version__
from speculant.options.serving import ServingOptions
from speculant.serving.access import AccessLog
from speculant.serving.bodies import BodyLimit
from speculant.serving.chat import create_chat
from speculant.serving.completions import create_completion
from speculant.serving.docs_page import add_docs_page
from speculant.serving.embeddings import add_embedding_routes
from speculant.serving.errors import ApiError, add_error_handlers
from speculant.serving.hosts import HostCheck
from speculant.serving.keys import KeyCheck, KeyRing, tenant_of
from speculant.serving.lenience import LenienceMiddleware
from speculant.serving.llamacpp_routes import add_llamacpp_routes
from speculant.serving.media import MediaReader
from speculant.serving.message_schemas import CountRequest, MessageError, MessageObject, MessagesRequest, TokenCount
from speculant.serving.messages_api import count_tokens, create_message
from speculant.serving.model_pool import FurtherModel, ModelPool
from speculant.serving.openapi import BODY, READING, add_openapi, errors, texts
from speculant.serving.page_files import add_page_files
from speculant.serving.probes import add_probe_routes
from speculant.serving.reloading import Reloader
from speculant.serving.response_schemas import ItemList, ResponseDeleted, ResponseObject, ResponseRequest
from speculant.serving.response_store import ResponseStore
from speculant.serving.responses import (
    ChatResponse,
    CompletionResponse,
    DetokenizeResponse,
    ModelCard,
    ModelList,
    TokenizeResponse,
)
from speculant.serving.responses_api import create_response
from speculant.serving.room import RequestRoom
from speculant.serving.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, LoadRequest, TokenizeRequest
from speculant.serving.streams import EventStream, event
from speculant.serving.tracing import Tracing
from speculant.serving.transcriptions import add_audio_routes
from speculant.serving.watch import Watch, add_watch_routes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from speculant.api.speculator import Speculator


_TYPED = "an event, as its `type` says"


def _chunks(kind: str) -> str:
    return f"an object `{kind}`, or an error; at last `[DONE]`"


def create_app(
    speculator: Speculator,
    settings: ServingOptions,
    *,
    model: str,
    method_settings: Any = None,
    spans: TracerProvider | None = None,
    further: Sequence[FurtherModel] = (),
) -> FastAPI:
    """Return the application that serves a model; its lifespan starts and stops decoding.

    Args:
        speculator: the model and its drafter; from now on the server must be its only user.
        settings: limits, keys, memory.
        model: the name that clients use.
        method_settings: settings of the drafter, for memories created per key.
        further: models that are loaded when requests name them.
        spans: provider of OpenTelemetry spans, shut down with the application; None for no tracing.

    Raises:
        SpeculantError: the memory cannot be kept as configured, or the models do not fit into their limit.
    """
    keys = KeyRing(settings)
    tenants = list(keys.tenants.values()) if settings.memory_scope == "key" else []
    models = ModelPool(
        speculator, settings, name=model, tenants=tenants, method_settings=method_settings, further=further
    )
    first = models.first
    service = first.service
    app = FastAPI(
        title="Speculant",
        version=__version__,
        lifespan=_make_lifespan(models, spans),
        docs_url=None,  # FastAPI's pages load scripts from other hosts; see `docs_page`
        redoc_url=None,
        middleware=[
            Middleware(AccessLog, metrics=models.metrics),
            *([] if spans is None else [Middleware(Tracing, provider=spans, model=model)]),
            *_middleware(settings, keys, body_bytes=_body_bytes(settings, service.media if not further else None)),
        ],
    )
    app.state.models = models
    app.state.unused_memories = first.keeper.unused
    app.state.prefix_cache = first.prefix_cache
    app.state.reloader = Reloader(keys, settings, tenants, lambda: [each.reloader for each in models.loaded])
    add_error_handlers(app)
    add_openapi(app, keys=settings.takes_keys)
    _add_text_routes(app, models)
    add_audio_routes(app, models)
    _add_response_routes(app, models, ResponseStore(limit=settings.response_store))
    _add_message_routes(app, models)
    _add_token_routes(app, models)
    add_embedding_routes(app, models)
    add_probe_routes(app, service)
    _add_server_routes(app, models)
    add_llamacpp_routes(app, service, takes=first.takes)
    add_page_files(app)
    add_docs_page(app)
    add_watch_routes(app, Watch(service, speculator.method, first.drafters, models.metrics, keys))
    return app


def _make_lifespan(
    models: ModelPool, spans: TracerProvider | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return the context in which the application runs: its parts start and stop in this order."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        models.start()
        try:
            yield
        finally:
            await models.stop()
            if spans is not None:
                await asyncio.to_thread(spans.shutdown)

    return lifespan


def _body_bytes(settings: ServingOptions, media: MediaReader | None) -> int:
    """Return the maximum size of a body: one media file plus the limit of a request without media.

    `media` is the reader of a single model; None for several models, some of which may take media.
    """
    takes = media is None or media.rate or media.kinds
    return settings.max_body_bytes + (settings.max_media_bytes * 4 // 3 if takes else 0)


def _middleware(settings: ServingOptions, keys: KeyRing, *, body_bytes: int) -> list[Middleware]:
    """Return the middleware inside the access log, outermost first."""
    found = [Middleware(RequestRoom, maximum=settings.max_connections)]
    if settings.cors_origins:
        origins, methods = list(settings.cors_origins), ["GET", "POST", "DELETE"]
        found.append(Middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=["*"]))
    if settings.hosts:
        found.append(Middleware(HostCheck, hosts=settings.hosts, seconds=settings.body_seconds))
    found.append(Middleware(KeyCheck, keys=keys, seconds=settings.body_seconds))
    found.append(Middleware(LenienceMiddleware, lenient=settings.lenient))
    found.append(Middleware(BodyLimit, maximum=body_bytes, seconds=settings.body_seconds))
    return found


def _add_text_routes(app: FastAPI, models: ModelPool) -> None:
    @app.post("/v1/chat/completions", response_model=ChatResponse, responses=texts(_chunks("chat.completion.chunk")))
    async def chat_completions(body: Annotated[ChatRequest, Body()], request: Request) -> Response:
        """Create a chat completion."""
        async with models.lend(body.model, request) as lent:
            return _response(await create_chat(lent.service, body, request))

    @app.post("/v1/completions", response_model=CompletionResponse, responses=texts(_chunks("text_completion")))
    async def completions(body: Annotated[CompletionRequest, Body()], request: Request) -> Response:
        """Create a text completion."""
        async with models.lend(body.model, request) as lent:
            return _response(await create_completion(lent.service, body, request))


def _add_response_routes(app: FastAPI, models: ModelPool, store: ResponseStore) -> None:
    @app.post("/v1/responses", response_model=ResponseObject, responses=texts(_TYPED))
    async def responses(body: Annotated[ResponseRequest, Body()], request: Request) -> Response:
        """Create a response, as in OpenAI's Responses API."""
        async with models.lend(body.model, request) as lent:
            return _response(*await create_response(lent.service, store, body, request))

    @app.get("/v1/responses/{name}", responses=errors(*READING, 404))
    async def kept_response(name: str, request: Request) -> ResponseObject:
        """Return a stored response."""
        return ResponseObject.model_validate(store.get(tenant_of(request), name).response)

    @app.delete("/v1/responses/{name}", responses=errors(*READING, 404))
    async def delete_response(name: str, request: Request) -> ResponseDeleted:
        """Delete a stored response."""
        store.delete(tenant_of(request), name)
        return ResponseDeleted(id=name)

    @app.post("/v1/responses/{name}/cancel", responses=errors(*READING, 400, 404, 408, 413))
    async def cancel_response(name: str, request: Request) -> ResponseObject:
        """Cancel a response that is being streamed."""
        return ResponseObject.model_validate(store.cancel(tenant_of(request), name))

    @app.get("/v1/responses/{name}/input_items", responses=errors(*READING, 404))
    async def input_items(name: str, request: Request) -> ItemList:
        """Return the input items of a stored response."""
        items = list(store.get(tenant_of(request), name).items)
        first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
        return ItemList(data=items, first_id=first, last_id=last)


def _add_message_routes(app: FastAPI, models: ModelPool) -> None:
    @app.post("/v1/messages", response_model=MessageObject, responses=texts(_TYPED, model=MessageError))
    async def messages(body: Annotated[MessagesRequest, Body()], request: Request) -> Response:
        """Create a message, as in Anthropic's Messages API."""
        async with models.lend(body.model, request) as lent:
            return _response(*await create_message(lent.service, body, request))

    @app.post("/v1/messages/count_tokens", responses=errors(*BODY, model=MessageError))
    async def count_message_tokens(body: Annotated[CountRequest, Body()], request: Request) -> TokenCount:
        """Return the number of tokens of a prompt."""
        async with models.lend(body.model, request) as lent:
            return await count_tokens(lent.service, body)


def _add_token_routes(app: FastAPI, models: ModelPool) -> None:
    @app.post("/tokenize", responses=errors(*BODY))
    async def tokenize(body: Annotated[TokenizeRequest, Body()], request: Request) -> TokenizeResponse:
        """Return the token ids of a prompt or of messages."""
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "send 'prompt' or 'messages', one of the two.", code="invalid_value")
        async with models.lend(body.model, request) as lent:
            prompts = lent.service.prompts
            if body.messages is not None:
                ids = (await prompts.messages(body.messages)).ids
            else:
                ids = await prompts.text(body.prompt or "", special=body.add_special_tokens is not False)
            return TokenizeResponse(count=len(ids), max_model_len=prompts.positions, tokens=ids)

    @app.post("/detokenize", responses=errors(*BODY))
    async def detokenize(body: Annotated[DetokenizeRequest, Body()], request: Request) -> DetokenizeResponse:
        """Return the text of token ids."""
        async with models.lend(body.model, request) as lent:
            return DetokenizeResponse(prompt=await lent.service.prompts.decode(body.tokens))


def _add_server_routes(app: FastAPI, models: ModelPool) -> None:
    @app.get("/v1/models", responses=errors(*READING))
    async def list_models() -> ModelList:
        """Return the served models, beginning with the first one."""
        return ModelList(data=models.cards())

    @app.get("/v1/models/{name:path}", responses=errors(*READING, 404))
    async def one_model(name: str) -> ModelCard:
        """Return a served model by its name."""
        return models.card(name)

    @app.post("/load_model", include_in_schema=False)
    async def load_model(body: Annotated[LoadRequest, Body()], request: Request) -> Response:
        """Load a model, and report it as `transformers serve` does; `transformers chat` waits for this."""
        async with models.lend(body.model, request) as lent:
            ready = event({"status": "ready", "model": lent.service.model, "cached": True})
            return Response(ready, headers={"Content-Type": EventStream.media_type})

    @app.get("/metrics", response_class=PlainTextResponse, responses=errors(*READING))
    async def prometheus(request: Request) -> Response:
        """Return Prometheus metrics; if memories are kept per key, only those of the key's own requests."""
        return Response(models.metrics_page(tenant_of(request)), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _response(answer: BaseModel | Response, headers: Mapping[str, str] | None = None) -> Response:
    if isinstance(answer, Response):
        return answer
    body = answer.model_dump()
    if body.get("metrics") is None:
        body.pop("metrics", None)
    return JSONResponse(body, headers=headers)
