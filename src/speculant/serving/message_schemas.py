"""`POST /v1/messages` as it is on the wire, Anthropic's Messages API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from speculant.serving.bounds import JsonObject, Rows, Strict
from speculant.serving.schemas import StopText
from speculant.serving.token_types import Finite


class Block(Strict):
    """A block of content; other kinds than those that are read are parsed, to be refused by name."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    text: str | None = None
    thinking: str | None = None
    source: JsonObject | None = None
    id: str | None = None
    name: str | None = None
    input: JsonObject | None = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None


Blocks = Annotated[Rows[Block], Field(max_length=4096)]


class AnthropicMessage(Strict):
    """A message of a chat."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class AnthropicTool(Strict):
    """A tool; those that the server cannot run are parsed, to be named."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str | None = Field(default=None, max_length=256)
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None


class AnthropicChoice(Strict):
    """Which tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """Whether to think before the answer, which is the chat template's own matter here."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(default=None, ge=1)
    display: str | None = Field(default=None, max_length=32)


class OutputFormat(Strict):
    """What the answer's text must match."""

    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(Strict):
    """Options of the answer."""

    effort: str | None = Field(default=None, max_length=32)
    format: OutputFormat | None = None


class AnthropicMetadata(Strict):
    """Who asks."""

    user_id: str | None = Field(default=None, max_length=512)


class CountRequest(Strict):
    """`POST /v1/messages/count_tokens`."""

    model: str | None = None
    messages: Annotated[Rows[AnthropicMessage], Field(min_length=1, max_length=4096)]
    system: str | Blocks | None = None
    tools: Annotated[Rows[AnthropicTool], Field(max_length=128)] | None = None
    tool_choice: AnthropicChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: JsonObject | None = None
    cache_control: JsonObject | None = None


class MessagesRequest(CountRequest):
    """`POST /v1/messages`."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Annotated[Rows[StopText], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Finite | None = Field(default=None, ge=0, le=100)
    top_p: Finite | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, lt=1 << 31)
    metadata: AnthropicMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class MessageObject(BaseModel):
    """An answer to `POST /v1/messages`."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: dict[str, Any]


class TokenCount(BaseModel):
    """Tokens of a prompt."""

    input_tokens: int


class MessageErrorBody(BaseModel):
    """Why a request was not answered."""

    type: str
    message: str


class MessageError(BaseModel):
    """An error in Anthropic's form."""

    type: Literal["error"] = "error"
    error: MessageErrorBody
