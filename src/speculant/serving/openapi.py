"""Additions to `/openapi.json` besides request types: errors, streams and keys.

FastAPI's own schema lists status 422, which is never returned here, and none of the errors that are.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from speculant.serving.message_schemas import MessageError
from speculant.serving.parameters import CHAT, COMPLETIONS, PARAMETERS
from speculant.serving.responses import ErrorResponse
from speculant.serving.room import PROBES

DESCRIPTIONS = {
    400: "The request is invalid or not supported; the message gives the reason.",
    401: "A valid API key is needed.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    429: "The queue is full.",
    499: "The client left before the answer.",
    500: "The server failed on this request.",
    503: "The server cannot answer now: it shuts down, has no memory left, or its decoding ended.",
    504: "The request took longer than the server allows.",
}
READING = (401,)  # error statuses of requests without a body
BODY = (400, 401, 404, 408, 413, 415)  # of requests with a body
FORMATS = (ErrorResponse, MessageError)
REFERENCE = "#/components/schemas/{model}"
DECODING = (*BODY, 429, 499, 500, 503, 504)  # of requests for texts


def errors(*statuses: int, model: type[BaseModel] = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """Return the responses of these statuses, with errors in OpenAI's or another format of `FORMATS`.

    They refer to the format, since FastAPI would compile a model anew for each status of each endpoint.
    """
    content = {"application/json": {"schema": {"$ref": REFERENCE.format(model=model.__name__)}}}
    return {status: {"content": content, "description": DESCRIPTIONS[status]} for status in statuses}


def texts(data: str, *, model: type[BaseModel] = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an endpoint for texts.

    Args:
        data: what an event of its streams contains, such as "an object `response`".
        model: format of errors.
    """
    field = {"type": "string", "description": f"JSON of {data}."}
    each = {"type": "object", "properties": {"data": field}, "required": ["data"]}
    described = "The text; with `stream` as server-sent events, of which the schema describes each."
    return {200: {"description": described, "content": {"text/event-stream": {"schema": each}}}} | errors(
        *DECODING, model=model
    )


def add_openapi(app: FastAPI, *, keys: bool) -> None:
    """Install the OpenAPI schema of an application; with `keys`, it describes how they are sent."""

    def describe_api() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _correct(get_openapi(title=app.title, version=app.version, routes=app.routes), keys)
        return app.openapi_schema

    app.openapi = describe_api  # type: ignore[method-assign]  # FastAPI's own way to change it


def _correct(schema: dict[str, Any], keys: bool) -> dict[str, Any]:
    parts = schema["components"]
    _, formats = models_json_schema([(each, "serialization") for each in FORMATS], ref_template=REFERENCE)
    parts["schemas"] = dict(sorted((parts["schemas"] | formats["$defs"]).items()))
    for name in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(name, None)
    for name, endpoint in (("ChatRequest", CHAT), ("CompletionRequest", COMPLETIONS)):
        notes = {each.name: each.note for each in PARAMETERS if endpoint in each.endpoints and each.supported}
        for field, found in parts["schemas"][name]["properties"].items():
            found["description"] = notes.get(field, "Refused, but for values that ask for nothing.")
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if keys and path not in PROBES:
                operation["security"] = [{"key": []}]
            elif not keys:
                operation["responses"].pop("401", None)
    if keys:
        parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return schema
