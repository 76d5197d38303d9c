"""Wire format of `POST /v1/responses`, OpenAI's Responses API.

Clients often send back items of an earlier answer, so members that mean nothing to a model are accepted.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from speculant.serving.bounds import MAX_FIELDS, JsonObject, Rows, Strict, at_most
from speculant.serving.schemas import StreamOptions, TextPart
from speculant.serving.token_types import Finite

MAX_ITEMS = 4096
Parts = Annotated[Rows[TextPart], Field(max_length=4096)]


class Item(Strict):
    """An item of the input: a message, a call, its output, or reasoning."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Parts | None = None
    name: str | None = None
    namespace: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | Parts | None = None
    summary: Parts | None = None


class ResponseTool(Strict):
    """A tool; those that the server cannot run are parsed too, so that they can be named."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str = Field(max_length=256)
    name: str | None = Field(default=None, max_length=256)
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    format: JsonObject | None = None
    tools: Annotated[Rows[JsonObject], Field(max_length=128)] | None = None


class ToolName(Strict):
    """A tool by its name."""

    type: Literal["function", "custom"]
    name: str = Field(max_length=256)


class AllowedNames(Strict):
    """The tools that may be called, among all that are shown to the model."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Rows[ToolName] = Field(min_length=1, max_length=128)


class TextFormat(Strict):
    """The format that the answer's text must match."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(default=None, max_length=256)
    description: str | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(Strict):
    """Options of the answer's text."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Strict):
    """Options of the reasoning before an answer, which is left to the chat template here."""

    effort: str | None = Field(default=None, max_length=32)
    summary: str | None = Field(default=None, max_length=32)
    generate_summary: str | None = Field(default=None, max_length=32)
    context: str | None = Field(default=None, max_length=32)


class ResponseRequest(Strict):
    """`POST /v1/responses`."""

    model: str | None = None
    input: str | Annotated[Rows[Item], Field(min_length=1, max_length=MAX_ITEMS)]
    instructions: str | None = None
    tools: Annotated[Rows[ResponseTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolName | AllowedNames | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: Finite | None = Field(default=None, ge=0, le=100)
    top_p: Finite | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=1 << 31)
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 62)
    priority: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    store: bool | None = None
    previous_response_id: str | None = Field(default=None, max_length=128)
    metadata: Annotated[dict[str, str], BeforeValidator(at_most(MAX_FIELDS))] | None = None
    client_metadata: Annotated[dict[str, str], BeforeValidator(at_most(MAX_FIELDS))] | None = None
    truncation: Literal["disabled"] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: Annotated[Rows[Literal["reasoning.encrypted_content"]], Field(max_length=16)] | None = None
    background: Literal[False] | None = None
    user: str | None = Field(default=None, max_length=512)
    prompt_cache_key: str | None = Field(default=None, max_length=512)
    prompt_cache_retention: str | None = Field(default=None, max_length=32)
    safety_identifier: str | None = Field(default=None, max_length=512)
    service_tier: str | None = Field(default=None, max_length=32)


class ResponseObject(BaseModel):
    """The response to `POST /v1/responses`, also when stored."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class ResponseDeleted(BaseModel):
    """Confirmation that a stored response was deleted."""

    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: Literal[True] = True


class ItemList(BaseModel):
    """The input items of a stored response."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False
