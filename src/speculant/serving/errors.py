"""Errors in OpenAI's format, {"error": {"message", "type", "param", "code"}}, and in Anthropic's for its paths."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from speculant.core.errors import OutOfMemoryError, SpeculantError, TokenizerError, UsageError
from speculant.serving.bounds import UnknownMemberError
from speculant.serving.schemas import ChatRequest, CompletionRequest

logger = logging.getLogger(__name__)
INVALID, SERVER = "invalid_request_error", "server_error"
_FORMS = "/v1/audio/"  # paths whose bodies are forms
_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"
_TWINS = {
    _CHAT: (_TEXT, frozenset(CompletionRequest.model_fields)),
    _TEXT: (_CHAT, frozenset(ChatRequest.model_fields)),
}
ANTHROPIC = "/v1/messages"  # and everything below it
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
LONGEST = 1000  # characters: maximum length of a message, which may quote client input


class ApiError(Exception):
    """An error response to a request.

    Attributes:
        status: HTTP status.
        message: the cause and a way out.
        type, param, code: as OpenAI's clients expect them.
        headers: additional headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,  # noqa: A002  (the field's name)
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.type, self.code = status, type, code
        self.message, self.param = _encodable(message), None if param is None else _encodable(param)
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """Return the body of the response."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self, path: str = "") -> JSONResponse:
        """Return it as an HTTP response, in the format of the protocol that the path belongs to."""
        body = anthropic_body(self) if path.startswith(ANTHROPIC) else self.body()
        return JSONResponse(body, self.status, headers=self.headers)


def require_value(value: Any, param: str) -> Any:
    """Return the value of a parameter.

    Raises:
        ApiError: it is missing.
    """
    if value is None:
        raise ApiError(400, f"the parameter '{param}' is missing.", param=param, code="missing_parameter")
    return value


def anthropic_body(error: ApiError) -> dict[str, Any]:
    """Return an error in Anthropic's format."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def api_error(error: BaseException) -> ApiError:
    """Convert an exception to the error a client sees; internal errors of the server reveal no details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UsageError | TokenizerError):
        return ApiError(400, str(error))
    if isinstance(error, OutOfMemoryError):
        message = "the device has no memory left for this request. Try again later, or shorten it."
        return ApiError(503, message, type=SERVER, code="out_of_memory", headers={"Retry-After": "1"})
    return ApiError(500, "the server failed on this request; its log says why.", type=SERVER, code="internal_error")


def queue_full(places: int, what: str) -> ApiError:
    """Return the error for a request that finds the queue full; at most `places` of `what` may wait."""
    return ApiError(
        429,
        f"the queue is full: at most {places} {what} are decoded or wait. Try again.",
        type="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": "1"},
    )


def add_error_handlers(app: FastAPI) -> None:
    """Have every error of an application answered in its protocol's format."""

    async def answer_expected(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error.response(request.url.path)

    async def answer_invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        found = validation_error(error.errors(), request.url.path)
        form = request.url.path.startswith(_FORMS)
        if (
            found.code != "missing_parameter" and not form and not _is_json(request)
        ):  # of other types nothing was parsed
            message = "the body is not declared as JSON; send the header Content-Type: application/json."
            found = ApiError(415, message, code="unsupported_media_type")
        return found.response(request.url.path)

    async def answer_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return routing_error(request, error).response(request.url.path)

    async def answer_known(request: Request, error: Exception) -> JSONResponse:
        return api_error(error).response(request.url.path)

    async def answer_unexpected(request: Request, error: Exception) -> JSONResponse:
        logger.error("a request failed", exc_info=error)
        return api_error(error).response(request.url.path)

    app.add_exception_handler(ApiError, answer_expected)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(HTTPException, answer_http)
    app.add_exception_handler(SpeculantError, answer_known)
    app.add_exception_handler(Exception, answer_unexpected)


def validation_error(errors: Sequence[Any], path: str = "") -> ApiError:
    """Return the error for the first invalid field of a request to a path."""
    first = _of_forms(errors)
    kind = first["type"]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    if kind == "json_invalid":
        return ApiError(400, "the body is not valid JSON.", code="invalid_json")
    if isinstance(unknown := first.get("ctx", {}).get("error"), UnknownMemberError):
        return unknown_member(unknown, f"{place}.{unknown.name}" if place else unknown.name, path)
    if kind == "missing":
        message = f"the parameter '{place}' is missing." if place else "the body is missing; send JSON."
        return ApiError(400, message, param=place or None, code="missing_parameter")
    message = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    named = f"'{place}': {message}." if place else f"{message}."
    return ApiError(400, named, param=place or None, code="invalid_value")


def unknown_member(unknown: UnknownMemberError, place: str, path: str = "") -> ApiError:
    """Return the error for an unknown member at a location in a request to a path."""
    way_out = f"did you mean '{unknown.near}'?" if unknown.near else "leave it out."
    twin, known = _TWINS.get(path, ("", ()))
    if place in known:
        way_out = f"{twin} takes it."
    return ApiError(400, f"there is no parameter '{place}'; {way_out}", param=place, code="unknown_parameter")


def _of_forms(errors: Sequence[Any]) -> Any:
    """Return the first error; if its value is of a union type, pydantic reports errors for each member of the union.

    Then it is the error of the member that the value matches best, at the value's own location, or what all require.
    """
    first = errors[0]
    depth = next((place for place, part in enumerate(first["loc"]) if _is_form(part)), None)
    if depth is None:
        return first
    forms = [each for each in errors if len(each["loc"]) > depth and each["loc"][:depth] == first["loc"][:depth]]
    best = max(forms, key=lambda each: ([part for part in each["loc"] if isinstance(part, int)], _fits_type(each)))
    wanted = best["msg"]
    if not _fits_type(best) and len(best["loc"]) == depth + 1:
        asked = [each["msg"].removeprefix("Input should be ").partition(" or instance")[0] for each in forms]
        wanted = f"Input should be {' or '.join(dict.fromkeys(asked))}"
    return best | {"loc": [part for part in best["loc"] if not _is_form(part)], "msg": wanted}


def _is_form(part: Any) -> bool:
    """Return whether a part of a location is pydantic's name of a type; parameters are in lower case."""
    if not isinstance(part, str) or part[:1].isdigit():  # a token id of logit_bias
        return False
    return not part.isidentifier() or part[0].isupper() or part in {"str", "int", "float"}


def _fits_type(error: Any) -> bool:
    return not error["type"].endswith(("_type", "literal_error"))


def routing_error(request: Request, error: HTTPException) -> ApiError:
    """Return the error for a request that matches no route; it names the right method or the closest path."""
    path, headers = request.scope["path"], dict(error.headers or {})
    routes = [route for route in request.app.routes if isinstance(route, APIRoute)]
    if error.status_code == 405:
        methods = sorted({name for route in routes if route.path_regex.match(path) for name in route.methods or ()})
        message = f"{request.method} is not a method of {path}; send {' or '.join(methods)}."
        return ApiError(405, message, code="wrong_method", headers=headers | {"Allow": ", ".join(methods)})
    if error.status_code == 404:
        known = [route.path for route in routes if route.include_in_schema and "{" not in route.path]
        near = difflib.get_close_matches(path[:LONGEST], known, n=1)
        hint = f"did you mean {near[0]}?" if near else "GET /openapi.json describes those that there are."
        return ApiError(404, f"there is no path {path} here; {hint}", code="unknown_path", headers=headers)
    return ApiError(error.status_code, str(error.detail), headers=headers)


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _encodable(text: str) -> str:
    """Return a truncated text without lone surrogates, which JSON in a request may contain but UTF-8 cannot encode."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return cut.encode("utf-8", "replace").decode()
