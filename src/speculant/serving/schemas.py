"""Wire format of requests.

Types are strict and unknown fields are errors, unless they are null, so that a misspelled parameter is not ignored.
Refused parameters have fields too, so that `parameters.check_supported` can give the reason.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, Json, model_validator

from speculant.serving.bounds import MAX_FIELDS, JsonObject, Rows, Strict, at_most
from speculant.serving.generation_config import GenerationConfig
from speculant.serving.token_types import Finite, TokenId

MAX_PROMPTS = 1024  # per request; the server's own limit is smaller
MAX_SEED = (1 << 63) - 1025  # further choices use the following seeds
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


class StreamOptions(Strict):
    """What a stream contains besides its text."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class TextPart(Strict):
    """A part of a message. Other types than text are parsed too, so that they can be refused by name."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    text: str | None = None

    @classmethod
    def is_closed(cls, given: dict[str, Any]) -> bool:
        """Return whether it is a text part, all of whose members are known."""
        return given.get("type") == "text"


TextParts = Annotated[Rows[TextPart], Field(max_length=4096)]


class CalledFunction(Strict):
    """The function of a tool call."""

    name: str
    arguments: str


class ToolCall(Strict):
    """A tool call of an earlier answer."""

    id: str
    type: Literal["function"] | None = "function"
    function: CalledFunction
    index: int | None = None


class Message(Strict):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | TextParts | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    name: str | None = None
    tool_calls: Annotated[Rows[ToolCall], Field(max_length=1024)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class FunctionDefinition(Strict):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool that the model may use."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Strict):
    """A function's name."""

    name: str


class NamedTool(Strict):
    """A tool by its name; as a choice, the tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Strict):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: Rows[NamedTool] = Field(min_length=1, max_length=128)


class AllowedToolChoice(Strict):
    """The tools that may be called, among all that are shown to the model."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class Prediction(Strict):
    """A text that the answer is expected to resemble."""

    type: Literal["content"]
    content: str | TextParts


class JsonSchema(Strict):
    """A JSON schema and its name; `strict` has no effect, since schemas are always enforced."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """The constraint on an answer, in OpenAI's format."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Strict):
    """The constraint on a text, in vLLM's format; exactly one member is set."""

    json_: JsonObject | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Annotated[Rows[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1024)] | None = None
    grammar: str | None = None


class SamplingRequest(Strict):
    """Parameters shared by both text endpoints."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    prompt_logprobs: int | None = Field(default=None, ge=0, le=20)
    temperature: Finite | None = Field(default=None, ge=0, le=100)
    top_p: Finite | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=1 << 31)
    min_p: Finite | None = Field(default=None, ge=0, le=1)
    repetition_penalty: Finite | None = Field(default=None, ge=0.01, le=100)
    seed: int | None = Field(default=None, ge=-(1 << 63), le=MAX_SEED)
    stop: StopText | Annotated[Rows[StopText], Field(max_length=16)] | None = None
    n: int | None = Field(default=None, ge=1, le=1024)
    user: str | None = Field(default=None, max_length=512)
    logit_bias: (
        Annotated[
            dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=1024),
            BeforeValidator(at_most(1024)),
        ]
        | None
    ) = None
    presence_penalty: Finite | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: Finite | None = Field(default=None, ge=-2, le=2)
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[Rows[str], Field(min_length=1, max_length=1024)] | None = None
    guided_grammar: str | None = None
    stop_token_ids: Annotated[Rows[TokenId], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(default=None, ge=0)
    return_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    priority: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    generation_config: Json[GenerationConfig] | None = None

    @model_validator(mode="after")
    def _fill_from_generation_config(self) -> SamplingRequest:
        """Use the generation config for parameters that the request omits."""
        given = {} if self.generation_config is None else self.generation_config.parameters()
        if self.token_limit is not None:
            given.pop("max_tokens", None)
        for name, value in given.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    @model_validator(mode="after")
    def _read_guided(self) -> SamplingRequest:
        """Read vLLM's former names of `structured_outputs`."""
        found = {name: getattr(self, f"guided_{name}") for name in ("json", "regex", "choice", "grammar")}
        given = {name: value for name, value in found.items() if value is not None}
        if given and (len(given) > 1 or self.structured_outputs is not None):
            raise ValueError("an answer can match one constraint; send one of 'guided_...' or 'structured_outputs'")
        if given:
            self.structured_outputs = StructuredOutputs.model_validate(given)
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def choices(self) -> int:
        """Number of texts per prompt."""
        return self.n or 1

    @property
    def token_limit(self) -> int | None:
        """Maximum number of tokens of a text; None if not given."""
        return self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """Number of most probable tokens to return for each token; None for no log-probabilities."""
        return None

    @property
    def prompt_alternatives(self) -> int | None:
        """The same for each token of the prompt."""
        return self.prompt_logprobs

    @property
    def reads_prompt(self) -> bool:
        """Whether the request can be answered without new tokens."""
        return False


class ChatRequest(SamplingRequest):
    """`POST /v1/chat/completions`."""

    messages: Rows[Message] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: Rows[Tool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prediction: Prediction | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    audio: Any = None
    modalities: Rows[str] | None = None
    reasoning_effort: str | None = Field(default=None, max_length=32)
    chat_template_kwargs: JsonObject | None = None
    verbosity: str | None = None
    web_search_options: Any = None
    moderation: Any = None
    store: bool | None = None
    metadata: Annotated[dict[str, str], BeforeValidator(at_most(MAX_FIELDS))] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None

    @property
    def token_limit(self) -> int | None:
        """Maximum number of tokens of an answer; None if not given."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """Number of most probable tokens to return for each token; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(SamplingRequest):
    """`POST /v1/completions`."""

    prompt: (
        str
        | Annotated[Rows[TokenId], Field(min_length=1)]
        | Annotated[Rows[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[Rows[Annotated[Rows[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)

    @property
    def alternatives(self) -> int | None:
        """Number of most probable tokens to return for each token; None for no log-probabilities."""
        return self.logprobs

    @property
    def prompt_alternatives(self) -> int | None:
        """The same for each token of the prompt, also requested by `echo`."""
        asked = [each for each in (self.prompt_logprobs, self.logprobs if self.echo else None) if each is not None]
        return max(asked, default=None)

    @property
    def reads_prompt(self) -> bool:
        """Whether the request can be answered without new tokens."""
        return bool(self.echo) or self.prompt_logprobs is not None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each as text or token ids."""
        prompt: Any = self.prompt
        return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)


class TokenizeRequest(Strict):
    """`POST /tokenize`, as in vLLM: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Rows[Message] | None = Field(default=None, min_length=1, max_length=4096)
    add_special_tokens: bool | None = None


class LoadRequest(Strict):
    """`POST /load_model`, as in `transformers serve`."""

    model: str


class DetokenizeRequest(Strict):
    """`POST /detokenize`, as in vLLM."""

    model: str | None = None
    tokens: Rows[TokenId]
