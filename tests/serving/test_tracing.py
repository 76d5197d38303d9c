"""OpenTelemetry: what the span of a request says, whose child it is, and that tracing costs nothing where it is off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra `otel`")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from servers import MODEL, chat, client_of, completion, make_speculator, running
from speculant.core.errors import UsageError
from speculant.options.serving import ServingOptions
from speculant.serving.app import create_app
from speculant.serving.tracing import open_provider, wants_tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@asynccontextmanager
async def traced(model: Any, tokenizer: Any, **options: Any) -> AsyncIterator[tuple[Any, InMemorySpanExporter]]:
    """Serve a model; yield a client and the spans that end."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = ServingOptions(memory_limit="8MiB", **options)
    app = create_app(make_speculator(model, tokenizer), settings, model=MODEL, spans=provider)
    async with running(app), client_of(app) as client:
        yield client, exporter


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_span_says_what_a_request_took(model: Any, tokenizer: Any, stream: bool) -> None:
    """Guards the attributes: they agree with the answer's usage and its drafts, whole or streamed."""
    body = completion("a b a b a b a b", max_tokens=40, seed=3, stream=stream)
    async with traced(model, tokenizer) as (client, exporter):
        for path in ("/health", "/v1/models", "/metrics"):
            assert (await client.get(path)).status_code == 200
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        [span] = exporter.get_finished_spans()
    found = dict(span.attributes or {})
    assert (span.name, span.kind, span.parent) == (f"text_completion {MODEL}", SpanKind.SERVER, None)
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.provider.name"] == "speculant"
    assert found["gen_ai.request.model"] == found["gen_ai.response.model"] == MODEL
    assert found["gen_ai.usage.input_tokens"] == 9  # one begins the text
    assert found["gen_ai.usage.output_tokens"] == 40
    assert found["gen_ai.request.max_tokens"] == 40
    assert found["gen_ai.request.stream"] is stream
    assert found["gen_ai.response.finish_reasons"] == ("length",)
    assert found["http.response.status_code"] == 200
    assert 0 < float(str(found["gen_ai.response.time_to_first_chunk"])) <= (span.end_time - span.start_time) / 1e9
    assert 0 < found["speculant.accepted_tokens"] <= found["speculant.draft_tokens"]
    assert found["speculant.rounds"] == 39 - found["speculant.accepted_tokens"]
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.anyio
async def test_a_span_is_its_callers_child(model: Any, tokenizer: Any) -> None:
    """Guards `traceparent`: traces go on across the server, and a caller that samples nothing costs nothing."""
    async with traced(model, tokenizer) as (client, exporter):
        for flag in ("01", "00"):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flag}"}
            assert (await client.post("/v1/chat/completions", json=chat(), headers=headers)).status_code == 200
        [span] = exporter.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT


@pytest.mark.anyio
async def test_refused_and_failed_requests(model: Any, tokenizer: Any) -> None:
    """Guards errors: what a client did wrong is no error of the server, what took too long is."""
    async with traced(model, tokenizer, request_seconds=1e-6, max_new_tokens=400) as (client, exporter):
        assert (await client.post("/v1/completions", json=completion(model="another"))).status_code == 404
        assert (await client.post("/v1/completions", json=completion(max_tokens=400))).status_code == 504
        wrong, late = exporter.get_finished_spans()
    assert wrong.status.status_code is StatusCode.UNSET
    assert late.status.status_code is StatusCode.ERROR
    assert [dict(each.attributes or {})["http.response.status_code"] for each in (wrong, late)] == [404, 504]
    assert all("error.type" in (each.attributes or {}) for each in (wrong, late))


def test_what_the_environment_asks_for() -> None:
    """Guards the standard variables: an exporter or an endpoint turns spans on, and they can be turned off."""
    assert not wants_tracing({})
    assert not wants_tracing({"OTEL_SERVICE_NAME": "name"})
    assert wants_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"})
    assert not wants_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_SDK_DISABLED": "true"})
    assert not wants_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_TRACES_EXPORTER": "none"})
    assert open_provider({}) is None
    with pytest.raises(UsageError, match="zipkin"):
        open_provider({"OTEL_TRACES_EXPORTER": "zipkin"})


def test_spans_go_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the exporter of the extra, and the service's name in place of OpenTelemetry's placeholder."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    provider = open_provider({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"})
    assert provider is not None
    assert provider.resource.attributes["service.name"] == "speculant"
    provider.shutdown()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    provider = open_provider({"OTEL_TRACES_EXPORTER": "console"})
    assert provider is not None
    assert provider.resource.attributes["service.name"] == "mine"
    provider.shutdown()


def test_nothing_is_imported_where_tracing_is_off() -> None:
    """Guards installations without the extra."""
    code = (
        "import sys; from speculant.serving.tracing import open_provider; assert open_provider({}) is None;"
        "assert not any(name.startswith('opentelemetry.sdk') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
