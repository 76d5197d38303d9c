"""Checks of a request's options, before transformers' `generate` prepares it."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationConfig

from speculant.api.options import check_number, unknown_option
from speculant.core.errors import UsageError
from speculant.engines.hf.sampling.own_config import CONTRADICTING, contradicts
from speculant.options.request import RequestKeywords, RequestOptions

MAX_NEW_TOKENS = 256
MAX_LOGPROBS = 20  # maximum alternatives per token, as in the OpenAI and vLLM APIs
MAX_PENALTY = 2  # absolute value, as there
_ELSEWHERE = "results have no field for it; ask `model.generate(..., custom_generate=speculator)`"
_DRAFTING = "what drafts is chosen by the speculator's `method`"
REFUSED = {
    "past_key_values": "give the cache of an earlier turn as `cache`",
    **dict.fromkeys(("return_dict_in_generate", "output_scores", "output_logits"), _ELSEWHERE),
    **dict.fromkeys(("assistant_model", "assistant_tokenizer", "prompt_lookup_num_tokens"), _DRAFTING),
    "custom_generate": "this is what a speculator is",
    "stop_strings": "give them as `stop`",
}
INPUTS = ("attention_mask", "position_ids", "logits_processor", "stopping_criteria", "generation_config", "use_cache")


@cache
def _known_options() -> frozenset[str]:
    return frozenset({*GenerationConfig().to_dict(), *INPUTS})


def check_options(options: dict[str, Any], asked: RequestOptions) -> None:
    """Refuse options that do not exist, are not supported, or have values that transformers would misread."""
    known = _known_options()
    for name, value in options.items():
        if name in REFUSED and value is not False:
            raise UsageError(f"`{name}` is not supported here: {REFUSED[name]}.")
        if name not in known:
            raise unknown_option(name, {*known, *RequestKeywords.__annotations__} - set(REFUSED))
    config = options.get("generation_config")
    if config is not None and not isinstance(config, GenerationConfig):
        raise UsageError(f"generation_config must be transformers' GenerationConfig, not {type(config).__name__}.")
    check_number("temperature", asked.temperature, minimum=0)
    check_number("top_p", asked.top_p, minimum=0, maximum=1, above=True)
    check_number("top_k", asked.top_k, minimum=0, whole=True)
    check_number("min_p", options.get("min_p"), minimum=0, maximum=1)
    check_number("repetition_penalty", options.get("repetition_penalty"), minimum=0, above=True)
    for name in ("logits_processor", "stopping_criteria"):
        parts = options.get(name, [])
        if not isinstance(parts, list) or not all(callable(part) for part in parts):
            raise UsageError(
                f"{name} must be a list of callables (transformers' classes, or functions), not {parts!r:.60}."
            )
    for name in ("presence_penalty", "frequency_penalty"):
        check_number(name, getattr(asked, name), minimum=-MAX_PENALTY, maximum=MAX_PENALTY)
    for name in ("logprobs", "prompt_logprobs"):
        check_number(name, getattr(asked, name), minimum=0, maximum=MAX_LOGPROBS, whole=True)
    if asked.prompt_logprobs is not None:
        _check_whole_prompt(asked.cache, options)
    if asked.constraint is not None:
        _check_constrained(options)


def _check_constrained(options: dict[str, Any]) -> None:
    """Refuse options that could exclude every token that a constraint allows."""
    for name in CONTRADICTING:
        if contradicts(name, SimpleNamespace(**options)) or contradicts(name, options.get("generation_config")):
            raise UsageError(f"`{name}` can contradict a constraint, which decides where the text ends; leave it out.")


def _check_whole_prompt(cache: Any, options: dict[str, Any]) -> None:
    """Refuse options that skip computing prompt tokens whose log-probabilities are requested."""
    padding = options.get("attention_mask")
    if cache is not None:
        raise UsageError("`prompt_logprobs` needs the whole prompt computed; leave out `cache`.")
    if padding is not None and not bool(torch.as_tensor(padding).all()):
        raise UsageError("`prompt_logprobs` does not support padding; leave out `attention_mask`.")


def limit_new_tokens(prompt: int, max_new_tokens: int | None, options: dict[str, Any]) -> int:
    """Return the maximum number of new tokens after a prompt; `max_length` is removed from the options."""
    config, length = options.get("generation_config"), options.pop("max_length", None)
    check_number("max_new_tokens", max_new_tokens, minimum=1, whole=True)
    check_number("max_length", length, minimum=1, whole=True)
    found = max_new_tokens
    if found is None and length is not None:
        found = length - prompt
    if found is None and config is not None:
        found = config.max_new_tokens
        if found is None and config.max_length not in (None, GenerationConfig().max_length):
            found = config.max_length - prompt
    return MAX_NEW_TOKENS if found is None else found
