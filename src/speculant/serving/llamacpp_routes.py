"""`/props` and `/slots`, as in llama.cpp's server, for clients and dashboards that use them.

A slot is a place for a text among those decoded together. Fields without an equivalent here are omitted, and texts and
prompts are not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel

from speculant import __version__
from speculant.serving.answers import Service
from speculant.serving.errors import SERVER, ApiError
from speculant.serving.exchange import Ticket
from speculant.serving.keys import tenant_of
from speculant.serving.openapi import READING, errors
from speculant.serving.schemas import CompletionRequest

_NONE = {  # transformers' options: neutral values, and llama.cpp's names
    "temperature": ("temperature", 1.0), "top_k": ("top_k", 0), "top_p": ("top_p", 1.0), "min_p": ("min_p", 0.0),
    "repetition_penalty": ("repeat_penalty", 1.0), "presence_penalty": ("presence_penalty", 0.0),
    "frequency_penalty": ("frequency_penalty", 0.0), "logprobs": ("n_probs", 0), "seed": ("seed", -1),
}  # fmt: skip


class DefaultParameters(BaseModel):
    """Default parameters of a text."""

    n_ctx: int | None
    speculative: bool
    params: dict[str, Any]


class Props(BaseModel):
    """Properties of the server.

    Attributes:
        default_generation_settings: default parameters of a request.
        total_slots: maximum number of texts decoded together.
        model_alias, model_path: the served model's name; paths are not revealed.
        chat_template: the model's chat template; "" if it has none.
        modalities: inputs that the model takes besides text.
        bos_token, eos_token: special tokens of the tokenizer; "" for none.
        build_info: the server's version.
        is_sleeping: always false here.
    """

    default_generation_settings: DefaultParameters
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    modalities: dict[str, bool]
    bos_token: str
    eos_token: str
    build_info: str = f"speculant {__version__}"
    is_sleeping: bool = False


class NextToken(BaseModel):
    """Progress of a text."""

    has_next_token: bool = True
    n_remain: int
    n_decoded: int


class Slot(BaseModel):
    """A slot for a text; for another key's text, only whether there is one.

    Attributes:
        id: number of the slot.
        id_task: number of the text; -1 if there is none, or it belongs to another key.
        n_ctx: number of positions of the model; null for no limit.
        speculative: whether its text is decoded with drafts.
        is_processing: whether it has a text.
        n_prompt_tokens, n_prompt_tokens_cache: tokens of the prompt, and those that the prefix cache held.
        params: parameters of the text.
        next_token: progress of the text.
    """

    id: int
    id_task: int = -1
    n_ctx: int | None
    speculative: bool
    is_processing: bool = False
    n_prompt_tokens: int | None = None
    n_prompt_tokens_cache: int | None = None
    params: dict[str, Any] | None = None
    next_token: NextToken | None = None


def add_llamacpp_routes(app: FastAPI, service: Service, *, takes: Sequence[str]) -> None:
    """Add the endpoints; `takes` are the kinds of input that the model takes besides text."""

    @app.get("/props", responses=errors(*READING))
    async def props() -> Props:
        """Return the properties of the server, in llama.cpp's format."""
        asked = CompletionRequest(prompt=[0])
        tokenizer = service.prompts.tokenizer
        return Props(
            default_generation_settings=DefaultParameters(
                n_ctx=service.prompts.positions,
                speculative=service.drafts,
                params=_params(service, service.options(asked, 0), ()),
            ),
            total_slots=service.engine.size,
            model_alias=service.model,
            model_path=service.model,
            chat_template=service.prompts.chat_template,
            modalities={"vision": "image" in takes, "audio": bool({"audio", "transcription"} & set(takes))},
            bos_token=getattr(tokenizer, "bos_token", None) or "",
            eos_token=getattr(tokenizer, "eos_token", None) or "",
        )

    @app.get("/slots", responses=errors(*READING, 503))
    async def slots(request: Request, fail_on_no_slot: str = "") -> list[Slot]:
        """Return the texts being decoded, in llama.cpp's format."""
        decoded = {ticket.slot: ticket for ticket in service.engine.list_decoded()}
        if len(decoded) == service.engine.size and fail_on_no_slot not in ("", "0"):
            raise ApiError(503, "no slot is available.", type=SERVER, code="busy", headers={"Retry-After": "1"})
        tenant = tenant_of(request)
        return [_slot(service, place, decoded.get(place), tenant) for place in range(service.engine.size)]


def _slot(service: Service, place: int, ticket: Ticket | None, tenant: str) -> Slot:
    empty = Slot(id=place, n_ctx=service.prompts.positions, speculative=service.drafts)
    if ticket is None:
        return empty
    job, stats = ticket.job, ticket.stats
    if job.tenant != tenant or stats is None:
        return empty.model_copy(update={"is_processing": True})
    return Slot(
        id=place,
        id_task=ticket.number,
        n_ctx=empty.n_ctx,
        speculative=service.drafts and not job.plain,
        is_processing=True,
        n_prompt_tokens=len(job.prompt),
        n_prompt_tokens_cache=stats.reused_tokens,
        params=_params(service, job.options, job.stop),
        next_token=NextToken(n_remain=job.options["max_new_tokens"] - stats.tokens, n_decoded=stats.tokens),
    )


def _params(service: Service, options: Mapping[str, Any], stop: Sequence[str]) -> dict[str, Any]:
    """Return options of `Speculator.prepare` by llama.cpp's names, with the model's defaults for missing ones."""
    greedy = options.get("temperature") == 0  # then the rest of the model's config has no effect
    defaults = service.engine.speculator.engine.defaults
    found = dict[str, Any]()
    for name, (shown, none) in _NONE.items():
        value = options.get(name)
        if value is None and not (greedy and name in ("top_k", "top_p", "min_p")):
            value = defaults.get(name)
        found[shown] = none if value is None else value
    maximum = options["max_new_tokens"]
    return found | {"n_predict": maximum, "max_tokens": maximum, "stop": list(stop)}
