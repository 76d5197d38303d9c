"""One request: how its tokens are chosen, when its text ends, and what is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict


class RequestKeywords(TypedDict, total=False):
    """Keywords of `Speculator.generate`, `stream` and `Batch.add`: the fields of `RequestOptions`, and transformers'.

    Any other field of transformers' GenerationConfig is taken too; type checkers know those that are named here.
    """

    max_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    seed: int | None
    stop: Any
    streamer: Any
    cache: Any
    logit_bias: Mapping[int, float] | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logprobs: int | None
    prompt_logprobs: int | None
    constraint: Any
    plain: bool
    watched: bool
    tenant: str
    prediction: Any
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    min_p: float | None
    repetition_penalty: float | None
    logits_processor: list[Any] | None
    stopping_criteria: list[Any] | None
    generation_config: Any
    attention_mask: Any
    position_ids: Any
    max_length: int | None
    min_new_tokens: int | None
    eos_token_id: Any
    pad_token_id: int | None
    do_sample: bool | None
    no_repeat_ngram_size: int | None
    bad_words_ids: Any
    suppress_tokens: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What is asked of one request. None is the default of every option.

    Attributes:
        max_new_tokens: maximum number of new tokens; fewer where the model has no more positions. None for what
            `generation_config` or `max_length` says, else 256.
        temperature: 0 for greedy decoding, above 0 to sample; None for what the model's generation config says. A value
            too small to divide logits by, below 1e-5, means 0.
        top_p, top_k: keep only the most probable tokens, as in transformers; they need sampling, as `min_p` does.
        seed: seed of a random stream of its own; None uses torch's default stream. Either way the text is the one that
            plain decoding yields with that stream.
        stop: strings that end the text; the one that did is part of it, as in transformers.
        streamer: a transformers streamer.
        cache: `Result.cache` of an earlier turn that this prompt continues.
        logit_bias: what is added to the logits of tokens, -100 to 100 by token id, as in OpenAI's API.
        presence_penalty, frequency_penalty: -2 to 2, subtracted from the logits of tokens that the generated text
            holds, once and for each occurrence; the prompt does not count.
        logprobs: record the log-probability of each token and of so many (0 to 20) most probable ones, of the model's
            own distribution; they are in `Result.logprobs` and each piece.
        prompt_logprobs: the same of each token of the prompt but the first, with its rank; they are in
            `Result.prompt_logprobs`.
        constraint: what the text must match: a `speculant.Constraint` of a JSON schema, a regular expression or a
            grammar. Drafted tokens that it forbids are not verified, and tokens that it forces are drafted.
        plain: whether the text is decoded without drafts and teaches the drafter nothing.
        watched: whether pieces hold the draft and the walk of each round.
        tenant: whose memory drafts and whose cached prefixes may be used, where a server keeps several.
        prediction: token ids of a text that the answer is expected to resemble, for drafters that copy from it.
        skip_special_tokens: whether special tokens are left out of the text. Where they are not, the one that ends the
            text is, as in vLLM.
        spaces_between_special_tokens: whether a space that the tokenizer puts between two special tokens stays.
        generation: `attention_mask`, `position_ids`, `logits_processor`, `stopping_criteria`, `generation_config` and
            any other field of transformers' GenerationConfig, by name.
    """

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: Any = None
    streamer: Any = None
    cache: Any = None
    logit_bias: Mapping[int, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Any = None
    plain: bool = False
    watched: bool = False
    tenant: str = ""
    prediction: Any = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    generation: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> RequestOptions:
        """Return the options that keywords give; None stands for not given."""
        own = {each.name for each in fields(cls)} - {"generation"}
        given = {name: value for name, value in keywords.items() if value is not None}
        generation = {name: value for name, value in given.items() if name not in own}
        return cls(**{name: value for name, value in given.items() if name in own}, generation=generation)
