"""OpenTelemetry tracing: one span per text request, following the semantic conventions for generative AI.

Tracing is on if the environment names an exporter or an endpoint: `OTEL_TRACES_EXPORTER`,
`OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`. Names, resources, sampling, batching and headers
are configured by OpenTelemetry's own variables. Spans never contain texts or prompts. Needs the packages of
`speculant[otel]`, none of which is imported if tracing is off; FastAPI imports the API by itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from speculant.core.errors import UsageError
from speculant.core.packages import check_packages
from speculant.serving.access import notes_of
from speculant.serving.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from speculant.serving.schemas import SamplingRequest

NAME = "speculant"
OPERATIONS = {  # operation names of the conventions, by route
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
}
EXPORTER = "OTEL_TRACES_EXPORTER"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_DECODED = "speculant.decoded"


def note_decoding(request: Request, asked: SamplingRequest, exchange: Exchange) -> None:
    """Add the parameters and results of a request's texts to its span."""
    request.scope[_DECODED] = asked, exchange


def wants_tracing(environment: Mapping[str, str]) -> bool:
    """Return whether the environment asks for spans."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get(EXPORTER) == "none":
        return False
    return any(environment.get(name) for name in (EXPORTER, *ENDPOINTS))


def open_provider(environment: Mapping[str, str]) -> TracerProvider | None:
    """Return the tracer provider configured by the environment; None if tracing is off.

    Raises:
        UnsupportedError: the packages are not installed.
        UsageError: there is no such exporter.
    """
    if not wants_tracing(environment):
        return None
    what = "tracing, which variables OTEL_... ask for (OTEL_SDK_DISABLED=true turns it off),"
    check_packages(("opentelemetry",), what=what, extra="otel")
    check_packages(("opentelemetry.sdk",), what=what, extra="otel")  # a subpackage, so checked after its parent
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: NAME}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(_find_exporter(environment)()))
    return provider


def _find_exporter(environment: Mapping[str, str]) -> Any:
    """Return the class of the exporter that the environment names.

    Raises:
        UsageError: it is not installed, or several are named.
    """
    name = environment.get(EXPORTER) or "otlp"
    if name == "otlp":
        protocol = next((environment[each] for each in PROTOCOLS if environment.get(each)), "http/protobuf")
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    found = {each.name: each for each in entry_points(group="opentelemetry_traces_exporter")}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise UsageError(
            f"OpenTelemetry has no exporter '{name}' here, which {EXPORTER} or {PROTOCOLS[1]} asks for; there are: "
            f"{known}. Install it, for instance by pip install 'speculant[otel]', or name another."
        )
    return found[name].load()


class Tracing:
    """Creates the span of each text request, once it has been answered."""

    def __init__(self, app: ASGIApp, provider: TracerProvider, model: str) -> None:
        """Set the provider of spans, and the model's name."""
        from speculant import __version__

        self._app, self._model = app, model
        self._tracer = provider.get_tracer(NAME, __version__)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, then create its span."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in OPERATIONS:
            await self._app(scope, receive, send)
            return
        begin, status = time.time_ns(), 499  # if the client disconnects before there is a response

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, seen)
        except BaseException:
            status = 500 if status == 499 else status
            raise
        finally:
            self._trace(scope, status, begin)

    def _trace(self, scope: Scope, status: int, begin: int) -> None:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode

        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        operation = OPERATIONS[scope["path"]]
        asked, exchange = scope.get(_DECODED, (None, None))
        notes = notes_of(scope)
        model = str(notes.get("model", self._model))  # noted where there are several
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": NAME,
            "gen_ai.request.model": model,
            "http.request.method": scope["method"],
            "http.route": scope["path"],
            "http.response.status_code": status,
            "gen_ai.usage.input_tokens": notes.get("prompt_tokens"),
        }
        if exchange is not None:
            attributes |= {"gen_ai.response.model": model, **_describe_request(asked), **_describe_decoding(exchange)}
        if status >= 400:
            attributes["error.type"] = str(notes.get("code", status))
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=extract(carrier),
            kind=SpanKind.SERVER,
            start_time=begin,
            attributes={name: value for name, value in attributes.items() if value is not None},
        )
        if status >= 500:  # client errors do not make a server span an error
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def _describe_request(asked: SamplingRequest) -> dict[str, Any]:
    """Return the span attributes of a request's parameters."""
    return {
        "gen_ai.request.max_tokens": asked.max_tokens,
        "gen_ai.request.temperature": asked.temperature,
        "gen_ai.request.top_p": asked.top_p,
        "gen_ai.request.top_k": asked.top_k,
        "gen_ai.request.seed": asked.seed,
        "gen_ai.request.stream": bool(asked.stream),
        "gen_ai.request.choice.count": asked.n if (asked.n or 1) > 1 else None,
    }


def _describe_decoding(exchange: Exchange) -> dict[str, Any]:
    """Return the span attributes of a request's decoding."""
    found = [ticket.stats for ticket in exchange.tickets if ticket.stats is not None]
    first = [ticket.first_token - ticket.submitted for ticket in exchange.tickets if ticket.first_token]
    queued = [ticket.admitted - ticket.submitted for ticket in exchange.tickets if ticket.admitted]
    return {
        "gen_ai.usage.output_tokens": sum(stats.tokens for stats in found),
        "gen_ai.usage.cache_read.input_tokens": sum(stats.reused_tokens for stats in found),
        "gen_ai.response.time_to_first_chunk": min(first, default=None),
        "gen_ai.response.finish_reasons": [each.finish_reason or "error" for each in exchange.tickets] or None,
        "speculant.queue_seconds": min(queued, default=None),
        "speculant.rounds": sum(stats.rounds for stats in found),
        "speculant.draft_tokens": sum(stats.drafted for stats in found),
        "speculant.accepted_tokens": sum(stats.accepted for stats in found),
    }
