"""All parameters of OpenAI's requests, and the supported ones of vLLM: supported, without effect, or refused.

The table in the documentation is generated from this one, and requests are checked against it, so that no parameter is
silently ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from speculant.serving.errors import ApiError
from speculant.serving.lenience import name_unused

CHAT, COMPLETIONS = "chat", "completions"
BOTH = (CHAT, COMPLETIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a request.

    Attributes:
        name: name of its field.
        endpoints: endpoints that have it.
        note: what it does here, or why it is refused.
        supported: whether it is supported.
        neutral: values without effect, accepted even if the parameter is refused; null always is.
        harmless: whether the text is the same without it, so that it is accepted, and named as without effect.
    """

    name: str
    note: str
    endpoints: tuple[str, ...] = BOTH
    supported: bool = True
    neutral: tuple[Any, ...] = ()
    harmless: bool = False

    @property
    def treatment(self) -> str:
        """How the server treats it, in a word or two."""
        return "supported" if self.supported else "no effect" if self.harmless else "refused"


def _refuse(
    name: str, note: str, *neutral: Any, endpoints: tuple[str, ...] = (CHAT,), harmless: bool = False
) -> Parameter:
    return Parameter(name=name, note=note, endpoints=endpoints, supported=False, neutral=neutral, harmless=harmless)


_ONE_MODEL = "this server runs a single model that reads and writes text"
_HOSTED = "a service of OpenAI's platform, which this server has no part in"
PARAMETERS = (
    Parameter(name="model", note="a name of a served model, see `/v1/models`; the first one where it is left out"),
    Parameter(
        name="messages",
        note="text, and `image_url`, `input_audio`, `video_url` where the model takes them; needs a chat template",
        endpoints=(CHAT,),
    ),
    Parameter(name="prompt", note="text, token ids, or a list of either", endpoints=(COMPLETIONS,)),
    Parameter(name="stream", note="server-sent events"),
    Parameter(name="stream_options", note="`include_usage`; `include_obfuscation` only as false"),
    Parameter(
        name="max_tokens",
        note="at most the server's limit and what the model has positions for; in completions 0 with `echo` or "
        "`prompt_logprobs`, for the prompt alone",
    ),
    Parameter(name="max_completion_tokens", note="the same as `max_tokens`", endpoints=(CHAT,)),
    Parameter(name="temperature", note="0 for greedy decoding; default 1"),
    Parameter(name="top_p", note="above 0; default: the model's generation config"),
    Parameter(name="top_k", note="as in vLLM: 0 or -1 for all tokens"),
    Parameter(name="min_p", note="as in vLLM"),
    Parameter(name="repetition_penalty", note="as in vLLM; 0.01 to 100"),
    Parameter(name="seed", note="the same seed and request yield the same text; choice i draws with seed + i"),
    Parameter(name="stop", note="up to 16 strings, left out of the text"),
    Parameter(name="n", note="choices, up to the server's limit"),
    Parameter(name="user", note="written to the server's log"),
    Parameter(
        name="tools",
        note="functions, for the chat template, whose format of calls must be known; arguments of `strict` ones match "
        "their schema where a grammar knows the format",
        endpoints=(CHAT,),
    ),
    Parameter(
        name="tool_choice",
        note='"auto", "none", "required", a function by its name, or `allowed_tools`; what must be called is forced by '
        "a grammar",
        endpoints=(CHAT,),
    ),
    Parameter(name="parallel_tool_calls", note="false for one call at most, by a grammar", endpoints=(CHAT,)),
    Parameter(
        name="prediction",
        note="drafts are copied from it where they are accepted; for methods that draft from text",
        endpoints=(CHAT,),
    ),
    Parameter(
        name="echo",
        note="puts the prompt before the text and, with `logprobs`, its tokens before the text's",
        endpoints=(COMPLETIONS,),
    ),
    Parameter(name="best_of", note="only equal to `n`: all texts are returned", endpoints=(COMPLETIONS,)),
    Parameter(name="logprobs", note="of the model's own distribution, as in vLLM; in completions a number, up to 20"),
    Parameter(
        name="prompt_logprobs",
        note="as in vLLM: up to 20, of each token of the prompt but the first; not in streams. The prompt is computed "
        "whole, without the prefix cache",
    ),
    Parameter(name="top_logprobs", note="up to 20, with `logprobs`", endpoints=(CHAT,)),
    Parameter(name="logit_bias", note="-100 to 100, by token id"),
    Parameter(name="presence_penalty", note="-2 to 2; of the text so far, not of the prompt"),
    Parameter(name="frequency_penalty", note="-2 to 2; of the text so far, not of the prompt"),
    Parameter(
        name="response_format",
        note="text, JSON object or JSON schema; holds inside drafts too; JSON has no spaces between its parts",
        endpoints=(CHAT,),
    ),
    Parameter(name="structured_outputs", note="as in vLLM: `json`, `regex`, `choice` or `grammar` (llguidance's Lark)"),
    *(
        Parameter(name=f"guided_{name}", note=f"vLLM's earlier name of `structured_outputs`' `{name}`")
        for name in ("json", "regex", "choice", "grammar")
    ),
    Parameter(name="stop_token_ids", note="as in vLLM: end the text too, and are part of it; up to 64"),
    Parameter(name="ignore_eos", note="as in vLLM: only `stop_token_ids` and the length end the text"),
    Parameter(name="min_tokens", note="as in vLLM: nothing that ends the text is chosen before"),
    Parameter(
        name="return_token_ids",
        note="as in vLLM: `token_ids` of each choice, in streams of each chunk, and `prompt_token_ids`",
    ),
    Parameter(
        name="skip_special_tokens",
        note="as in vLLM: false to show special tokens, but for the one that ends the text",
    ),
    Parameter(
        name="spaces_between_special_tokens",
        note="as in vLLM: false to drop spaces that the tokenizer puts between special tokens",
    ),
    Parameter(
        name="priority",
        note="as in vLLM: lower ones leave the queue earlier; among requests of the same key",
    ),
    Parameter(
        name="chat_template_kwargs",
        note="as in vLLM: switches of the chat template, such as `enable_thinking`",
        endpoints=(CHAT,),
    ),
    Parameter(
        name="reasoning_effort",
        note="for chat templates that take it; with others it has no effect",
        endpoints=(CHAT,),
    ),
    Parameter(
        name="generation_config",
        note="as `transformers chat` sends it, JSON in a text, for what is left out: `max_new_tokens`, `do_sample`, "
        "`temperature`, `top_p`, `top_k`, `min_p`, `repetition_penalty`, `eos_token_id`; other fields are refused",
    ),
    _refuse("suffix", "the model continues texts, it does not fill gaps", "", endpoints=(COMPLETIONS,)),
    _refuse("functions", "use `tools`", []),
    _refuse("function_call", "use `tools` and `tool_choice`", "none", "auto"),
    _refuse("audio", _ONE_MODEL),
    _refuse("modalities", _ONE_MODEL, ["text"]),
    _refuse("verbosity", "the model has no such switch", "medium", harmless=True),
    _refuse("web_search_options", _HOSTED),
    _refuse("moderation", _HOSTED),
    _refuse("store", "requests are not stored", False, harmless=True),
    _refuse("metadata", "requests are not stored", {}, harmless=True),
    _refuse("service_tier", _HOSTED, "auto", "default", harmless=True),
    _refuse("safety_identifier", f"{_HOSTED}; `user` is written to the log", harmless=True),
    _refuse("prompt_cache_key", _HOSTED, harmless=True),
    _refuse("prompt_cache_options", _HOSTED, harmless=True),
    _refuse("prompt_cache_retention", _HOSTED, harmless=True),
)


def check_supported(endpoint: str, values: Mapping[str, Any]) -> None:
    """Check that an endpoint supports all parameters of a request.

    Args:
        endpoint: CHAT or COMPLETIONS.
        values: the fields that the client sent.

    Raises:
        ApiError: a parameter is not supported.
    """
    for parameter in PARAMETERS:
        value = values.get(parameter.name)
        if parameter.supported or endpoint not in parameter.endpoints or value is None or value in parameter.neutral:
            continue
        if parameter.harmless:
            name_unused(parameter.name)
            continue
        raise ApiError(
            400,
            f"'{parameter.name}' is not supported: {parameter.note.replace('`', chr(39))}. Leave it out.",
            param=parameter.name,
            code="unsupported_parameter",
        )


def parameter_table() -> str:
    """Return the table for the documentation, in Markdown."""
    lines = ["| parameter | chat | completions | |", "|---|---|---|---|"]
    for parameter in PARAMETERS:
        marks = ["" if endpoint not in parameter.endpoints else parameter.treatment for endpoint in BOTH]
        note = parameter.note
        if not (parameter.supported or parameter.harmless) and parameter.neutral:
            neutral = ", ".join(f"`{json.dumps(value)}`" for value in parameter.neutral)
            note += f" (taken as {neutral})"
        lines.append(f"| `{parameter.name}` | {marks[0]} | {marks[1]} | {note} |")
    return "\n".join(lines)
