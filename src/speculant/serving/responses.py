"""Wire format of responses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from speculant.serving.schemas import CalledFunction


class Error(BaseModel):
    """Details of an error, in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """An error response."""

    error: Error


class PromptDetails(BaseModel):
    """Details of prompt tokens: those found in the prefix cache, and those that stand for media."""

    cached_tokens: int
    image_tokens: int = 0
    audio_tokens: int = 0
    video_tokens: int = 0


class CompletionDetails(BaseModel):
    """Details of completion tokens: those of the reasoning."""

    reasoning_tokens: int = 0


class Usage(BaseModel):
    """Token usage of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class MadeCall(BaseModel):
    """A tool call in an answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AnswerMessage(BaseModel):
    """The message of a chat's answer; its reasoning has two names, those of DeepSeek's API and of vLLM."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None
    tool_calls: list[MadeCall] | None = None


class ChatChoice(BaseModel):
    """A choice of a chat completion."""

    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None = None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] | None = None


class PromptLogprob(BaseModel):
    """The log-probability of one token at a position of the prompt, in vLLM's format."""

    logprob: float
    rank: int
    decoded_token: str


class SpeculativeMetrics(BaseModel):
    """Speculative decoding metrics of a request, in vLLM's format.

    Attributes:
        mean_acceptance_length: tokens per round, including the bonus token.
        draft_acceptance_rate: accepted tokens per drafted token; all nodes of a draft tree count as drafted.
        acceptance_histogram: [j] counts the rounds that accepted exactly j drafted tokens.
        num_spec_steps: number of rounds.
        num_accepted_draft_tokens, num_draft_tokens: totals over all rounds.
        num_spec_tokens: maximum number of tokens of a draft.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class RequestMetrics(BaseModel):
    """Opt-in metrics of a request; absent for several choices, as in vLLM."""

    speculative_decoding: SpeculativeMetrics | None


class ChatResponse(BaseModel):
    """The response to `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    prompt_token_ids: list[int] | None = None
    usage: Usage
    metrics: RequestMetrics | None = None


class CompletionChoice(BaseModel):
    """A choice of a text completion."""

    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(BaseModel):
    """The response to `POST /v1/completions`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    metrics: RequestMetrics | None = None


class TokenizeResponse(BaseModel):
    """Token ids."""

    count: int
    max_model_len: int | None
    tokens: list[int]


class DetokenizeResponse(BaseModel):
    """A text."""

    prompt: str


class ModelCard(BaseModel):
    """A served model.

    Attributes:
        id: a name of the model.
        root: its own name, which responses use.
        parent: for an adapter, the model that it belongs to.
        max_model_len: maximum positions; null for no limit, and for a model that has not been loaded yet.
        modalities: kinds of input that it takes; "transcription" for a speech-to-text model.
        loaded: whether it is loaded now; other models are loaded when a request names them.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["speculant"] = "speculant"
    root: str
    parent: str | None = None
    max_model_len: int | None = None
    modalities: list[str]
    loaded: bool = True


class ModelList(BaseModel):
    """`GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
