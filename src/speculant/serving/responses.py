"""Responses as they are on the wire."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from speculant.serving.schemas import CalledFunction


class Error(BaseModel):
    """Why a request was not answered, in OpenAI's form."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """An error."""

    error: Error


class PromptDetails(BaseModel):
    """Tokens of a prompt that were not computed, since the prefix cache held them, and those that stand for media."""

    cached_tokens: int
    image_tokens: int = 0
    audio_tokens: int = 0


class CompletionDetails(BaseModel):
    """Tokens of an answer's reasoning."""

    reasoning_tokens: int = 0


class Usage(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class MadeCall(BaseModel):
    """A tool call of an answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AnswerMessage(BaseModel):
    """A chat's answer; its reasoning has two names, of DeepSeek's API and of vLLM."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None
    tool_calls: list[MadeCall] | None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None = None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] | None = None


class PromptLogprob(BaseModel):
    """The log-probability of one token at a place of the prompt, in vLLM's form."""

    logprob: float
    rank: int
    decoded_token: str


class SpeculativeMetrics(BaseModel):
    """What drafting did for a request, in vLLM's form.

    Attributes:
        mean_acceptance_length: tokens per round, the bonus token included.
        draft_acceptance_rate: accepted tokens per drafted one; drafted are all nodes of draft trees.
        acceptance_histogram: [j] counts the rounds that accepted exactly j drafted tokens.
        num_spec_steps: rounds.
        num_accepted_draft_tokens, num_draft_tokens: over all rounds.
        num_spec_tokens: the most tokens of a draft.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class RequestMetrics(BaseModel):
    """Opt-in figures of a request; of several choices there are none, as in vLLM."""

    speculative_decoding: SpeculativeMetrics | None


class ChatResponse(BaseModel):
    """An answer to `POST /v1/chat/completions`."""

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
    """One text."""

    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(BaseModel):
    """An answer to `POST /v1/completions`."""

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
        id: a name of it.
        root: its own name, which answers carry.
        parent: of an adapter the model that it belongs to.
        max_model_len: positions; null for no limit, and for a model that was not loaded yet.
        modalities: what its requests may hold; "transcription" for one that turns speech into text.
        loaded: whether it is loaded now; others are when a request names them.
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
