"""The application: its routes and its parts."""

from __future__ import annotations

from collections.abc import Mapping
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
from speculant.serving.answers import Service, now
from speculant.serving.bodies import BodyLimit
from speculant.serving.chat import create_chat
from speculant.serving.completions import create_completion
from speculant.serving.docs_page import add_docs_page
from speculant.serving.embedding_queue import EmbeddingQueue
from speculant.serving.embeddings import add_embedding_routes
from speculant.serving.engine_loop import EngineLoop
from speculant.serving.errors import ApiError, add_error_handlers
from speculant.serving.grammars import GrammarCompiler
from speculant.serving.hosts import HostCheck
from speculant.serving.keys import KeyCheck, KeyRing, tenant_of
from speculant.serving.lenience import Lenience
from speculant.serving.lifespan import make_lifespan
from speculant.serving.llamacpp_routes import add_llamacpp_routes
from speculant.serving.media import MediaReader
from speculant.serving.memory_keeper import MemoryKeeper
from speculant.serving.message_schemas import CountRequest, MessageError, MessageObject, MessagesRequest, TokenCount
from speculant.serving.messages_api import count_tokens, create_message
from speculant.serving.openapi import BODY, READING, add_openapi, errors, texts
from speculant.serving.page_files import add_page_files
from speculant.serving.probes import add_probe_routes
from speculant.serving.prompts import PromptEncoder
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
from speculant.serving.routing import can_route, route
from speculant.serving.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, LoadRequest, TokenizeRequest
from speculant.serving.scoped_metrics import ScopedMetrics, watch_engine
from speculant.serving.streams import EventStream, event
from speculant.serving.tracing import Tracing
from speculant.serving.transcriptions import HEARS, Transcriber, add_audio_routes, hears
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
) -> FastAPI:
    """Return the application that serves a model; its lifespan starts and ends the decoding.

    Args:
        speculator: the model and its drafter; the server is its only user from now on.
        settings: limits, keys, memory.
        model: the name that clients use.
        method_settings: of the drafter, for memories that are made for each key.
        spans: what makes and sends OpenTelemetry's spans; None for none. It is shut down with the application.

    Raises:
        SpeculantError: the memory cannot be kept as the settings say.
    """
    keys = KeyRing(settings)
    tenants = list(keys.tenants.values()) if settings.memory_scope == "key" else []
    metrics = ScopedMetrics(model, tenants, prefix=settings.metrics_prefix)
    drafters = route(speculator, tenants=tenants, memory_limit=settings.memory_limit, settings=method_settings)
    keeper = MemoryKeeper(
        drafters,
        settings.memory,
        corpus=settings.corpus,
        seconds=settings.save_seconds,
        strict=settings.memory_strict,
        metrics=metrics,
    )
    embeddings = EmbeddingQueue(
        speculator.engine,
        chunk=settings.prompt_chunk or None,
        places=settings.max_concurrency + settings.max_queue,
        seconds=settings.request_seconds,
    )
    engine = EngineLoop(
        speculator,
        size=settings.max_concurrency,
        queue=settings.max_queue,
        seconds=settings.request_seconds,
        buffer_tokens=settings.buffer_tokens,
        prefix_cache=settings.prefix_cache,
        prompt_chunk=settings.prompt_chunk or None,
        refusal=HEARS if hears(speculator) else "",
        beside=embeddings,
        observer=metrics,
    )
    media = MediaReader(speculator, settings)
    transcriber = Transcriber(
        speculator, queue=settings.max_concurrency + settings.max_queue, seconds=settings.request_seconds
    )
    service = Service(
        model=model,
        created=now(),
        engine=engine,
        media=media,
        prompts=PromptEncoder(
            speculator,
            media,
            token_limit=settings.max_prompt_tokens,
            reasoning=settings.reasoning_parser,
            tools=settings.tool_parser,
        ),
        grammars=GrammarCompiler(speculator),
        settings=settings,
        predicts=can_route(speculator),
        max_nodes=speculator.nodes if isinstance(speculator.nodes, int) else speculator.drafter.needs.max_nodes,
    )
    watch_engine(metrics, engine, room=settings.max_concurrency * service.longest)
    app = FastAPI(
        title="Speculant",
        version=__version__,
        lifespan=make_lifespan(service, keeper, transcriber, spans),
        docs_url=None,  # FastAPI's pages load scripts from other hosts; see `docs_page`
        redoc_url=None,
        middleware=[
            Middleware(AccessLog, metrics=metrics),
            *([] if spans is None else [Middleware(Tracing, provider=spans, model=model)]),
            *_middleware(settings, keys, body_bytes=_body_bytes(settings, media)),
        ],
    )
    app.state.unused_memories = keeper.unused
    app.state.reloader = Reloader(speculator, drafters, keeper, keys, settings, method_settings)
    add_error_handlers(app)
    add_openapi(app, keys=settings.takes_keys)
    _add_text_routes(app, service)
    add_audio_routes(app, service, transcriber)
    _add_response_routes(app, service, ResponseStore(limit=settings.response_store))
    _add_message_routes(app, service)
    _add_token_routes(app, service)
    add_embedding_routes(app, service, embeddings)
    add_probe_routes(app, service)
    takes = ["transcription"] if transcriber.works else ["text", *media.kinds]
    _add_server_routes(app, service, metrics, takes=takes)
    add_llamacpp_routes(app, service, takes=takes)
    add_page_files(app)
    add_docs_page(app)
    add_watch_routes(app, Watch(service, speculator.method, drafters, metrics, keys))
    return app


def _body_bytes(settings: ServingOptions, media: MediaReader) -> int:
    """Return how large a body may be: that of one file beside what a request without media may have."""
    return settings.max_body_bytes + (settings.max_media_bytes * 4 // 3 if media.rate or media.kinds else 0)


def _middleware(settings: ServingOptions, keys: KeyRing, *, body_bytes: int) -> list[Middleware]:
    """Return what every request passes below the logs, the outermost first."""
    found = [Middleware(RequestRoom, maximum=settings.max_connections)]
    if settings.cors_origins:
        origins, methods = list(settings.cors_origins), ["GET", "POST", "DELETE"]
        found.append(Middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=["*"]))
    if settings.hosts:
        found.append(Middleware(HostCheck, hosts=settings.hosts, seconds=settings.body_seconds))
    found.append(Middleware(KeyCheck, keys=keys, seconds=settings.body_seconds))
    if settings.lenient:
        found.append(Middleware(Lenience))
    found.append(Middleware(BodyLimit, maximum=body_bytes, seconds=settings.body_seconds))
    return found


def _add_text_routes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", response_model=ChatResponse, responses=texts(_chunks("chat.completion.chunk")))
    async def chat_completions(body: Annotated[ChatRequest, Body()], request: Request) -> Response:
        """Answer a chat."""
        return _response(await create_chat(service, body, request))

    @app.post("/v1/completions", response_model=CompletionResponse, responses=texts(_chunks("text_completion")))
    async def completions(body: Annotated[CompletionRequest, Body()], request: Request) -> Response:
        """Continue a text."""
        return _response(await create_completion(service, body, request))


def _add_response_routes(app: FastAPI, service: Service, store: ResponseStore) -> None:
    @app.post("/v1/responses", response_model=ResponseObject, responses=texts(_TYPED))
    async def responses(body: Annotated[ResponseRequest, Body()], request: Request) -> Response:
        """Answer in the form of OpenAI's Responses API."""
        return _response(*await create_response(service, store, body, request))

    @app.get("/v1/responses/{name}", responses=errors(*READING, 404))
    async def kept_response(name: str, request: Request) -> ResponseObject:
        """Return a response that is kept."""
        return ResponseObject.model_validate(store.get(tenant_of(request), name).response)

    @app.delete("/v1/responses/{name}", responses=errors(*READING, 404))
    async def delete_response(name: str, request: Request) -> ResponseDeleted:
        """Let go of a response."""
        store.delete(tenant_of(request), name)
        return ResponseDeleted(id=name)

    @app.post("/v1/responses/{name}/cancel", responses=errors(*READING, 400, 404, 408, 413))
    async def cancel_response(name: str, request: Request) -> ResponseObject:
        """End the decoding of a response that is being streamed."""
        return ResponseObject.model_validate(store.cancel(tenant_of(request), name))

    @app.get("/v1/responses/{name}/input_items", responses=errors(*READING, 404))
    async def input_items(name: str, request: Request) -> ItemList:
        """Return the items of a kept response's input."""
        items = list(store.get(tenant_of(request), name).items)
        first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
        return ItemList(data=items, first_id=first, last_id=last)


def _add_message_routes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/messages", response_model=MessageObject, responses=texts(_TYPED, model=MessageError))
    async def messages(body: Annotated[MessagesRequest, Body()], request: Request) -> Response:
        """Answer in the form of Anthropic's Messages API."""
        return _response(*await create_message(service, body, request))

    @app.post("/v1/messages/count_tokens", responses=errors(*BODY, model=MessageError))
    async def count_message_tokens(body: Annotated[CountRequest, Body()]) -> TokenCount:
        """Return how many tokens a prompt has."""
        return await count_tokens(service, body)


def _add_token_routes(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize", responses=errors(*BODY))
    async def tokenize(body: Annotated[TokenizeRequest, Body()]) -> TokenizeResponse:
        """Return the token ids of a prompt or of messages."""
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "send 'prompt' or 'messages', one of the two.", code="invalid_value")
        if body.messages is not None:
            ids = (await service.prompts.messages(body.messages)).ids
        else:
            ids = await service.prompts.text(body.prompt or "", special=body.add_special_tokens is not False)
        return TokenizeResponse(count=len(ids), max_model_len=service.prompts.positions, tokens=ids)

    @app.post("/detokenize", responses=errors(*BODY))
    async def detokenize(body: Annotated[DetokenizeRequest, Body()]) -> DetokenizeResponse:
        """Return the text of token ids."""
        service.check_model(body.model)
        return DetokenizeResponse(prompt=await service.prompts.decode(body.tokens))


def _add_server_routes(app: FastAPI, service: Service, metrics: ScopedMetrics, *, takes: list[str]) -> None:
    card = ModelCard(
        id=service.model, created=service.created, max_model_len=service.prompts.positions, modalities=takes
    )

    @app.get("/v1/models", responses=errors(*READING))
    async def models() -> ModelList:
        """Return the served model."""
        return ModelList(data=[card])

    @app.get("/v1/models/{name:path}", responses=errors(*READING, 404))
    async def one_model(name: str) -> ModelCard:
        """Return the served model by its name."""
        service.check_model(name)
        return card

    @app.post("/load_model", include_in_schema=False)
    async def load_model(body: Annotated[LoadRequest, Body()]) -> Response:
        """Answer that the model is loaded, in the form of `transformers serve`, which `transformers chat` waits for."""
        service.check_model(body.model)
        ready = event({"status": "ready", "model": service.model, "cached": True})
        return Response(ready, headers={"Content-Type": EventStream.media_type})

    @app.get("/metrics", response_class=PlainTextResponse, responses=errors(*READING))
    async def prometheus(request: Request) -> Response:
        """Return Prometheus metrics, of one's own requests where memories are kept by key."""
        return Response(metrics.of(tenant_of(request)).page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _response(answer: BaseModel | Response, headers: Mapping[str, str] | None = None) -> Response:
    if isinstance(answer, Response):
        return answer
    body = answer.model_dump()
    if body.get("metrics") is None:
        body.pop("metrics", None)
    return JSONResponse(body, headers=headers)
