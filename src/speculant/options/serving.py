"""Where the server listens, who may ask, what it keeps, and every limit."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from speculant.core.errors import UsageError
from speculant.options import kinds, option
from speculant.options.drafting import DraftingOptions

REASONING_PARSERS = (
    *("think", "mistral", "gemma4", "kimi", "kimi_k3", "hunyuan", "solar_open", "ernie", "longcat", "cohere"),
    *("apertus", "apriel", "seed", "harmony", "response_template"),
)
TOOL_PARSERS = (
    *("hermes", "qwen3_coder", "glm", "mistral", "deepseek", "deepseek_v32", "kimi", "kimi_k3", "minimax"),
    *("minimax_m3", "hunyuan", "solar_open", "solar_open2", "step3", "longcat", "llama3", "llama4", "gemma4"),
    *("functiongemma", "seed", "cohere", "apertus", "nemotron", "tool_calls", "phi4", "granite"),
    *("granite_20b", "gigachat", "internlm2", "minicpm", "pythonic", "xlam", "lfm2", "olmo3", "functionary", "harmony"),
    "response_template",
)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")

OWN_PREFIX, VLLM_PREFIX = METRIC_PREFIXES = "speculant_", "vllm:"

_server = partial(option.option, panel="Server")
_limit = partial(option.option, panel="Limits")
_memory = partial(option.option, panel="Drafting")


def read_key(value: Any) -> str:
    """Return an API key.

    Raises:
        ValueError: it has characters that a header cannot hold.
    """
    if not isinstance(value, str) or not value or not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("must be printable ASCII characters without spaces, and not empty.")
    return value


def split_named(given: Sequence[str]) -> dict[str, str]:
    """Return what texts NAME=VALUE name, by name."""
    return {name: value for name, _, value in (each.partition("=") for each in given)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Where the server listens, who may ask, what it keeps, and its limits.

    Attributes:
        host, port: address that it listens on.
        api_keys: keys that requests must carry one of; an empty list disables authentication.
        api_key_file: file with a further key on each line; `#` begins a comment. It is read again on SIGHUP.
        allow_no_key: whether it may listen beyond this machine without keys.
        cors_origins: origins whose pages may send requests from a browser.
        allowed_hosts: allowed values of the header `Host`; empty for the loopback names where it listens on loopback
            without keys, which keeps other sites' pages from reaching it by a name of their own, else for any.
        log_format: "text" for key=value lines, "json" for JSON lines.
        aliases: further names of the model.
        add_models: further models, as NAME=PATH or NAME=ID, that are loaded when a request names them.
        loras: LoRA adapters of the model, in the same form; each is served as a model of its own, with the adapter
            merged into a copy of the weights.
        models_memory: maximum bytes of the weights of all models that are loaded; beyond, the one of `add_models` and
            `loras` that was not used for longest is unloaded. 0 for no limit.
        metrics_prefix: "speculant_", or "vllm:" for vLLM's names, labels and buckets of metrics.
        reasoning_parser: how the model marks reasoning; "auto" for what its chat template shows, "none" to leave it in
            the text.
        tool_parser: how the model writes calls of tools; "auto" for what its chat template asks for.
        per_request_metrics: whether responses hold `metrics.speculative_decoding`.
        lenient: whether unknown parameters of requests are left out and named in a header, in place of 400.
        max_concurrency: maximum requests decoded together.
        max_queue: maximum requests that wait beyond these; more get 429.
        prefix_cache: bytes in which what prompts have in common is kept, such as system prompts; 0 for nothing, None
            for a tenth of the memory that is free once the model is loaded, from 256 MiB to 8 GiB. Prompts share
            with those of the same key only, since how much was cached tells what others have asked.
        prompt_chunk: maximum prompt tokens that are read between two rounds, which is how long streams may pause; 0
            for as many as suit the device.
        max_new_tokens: maximum new tokens that a request may ask for, and gets if it asks for none.
        max_prompt_tokens: maximum prompt tokens of a request; 0 for as many as the model has positions.
        max_body_bytes: maximum size of a request.
        max_media: maximum images, recordings and videos of a request.
        max_media_bytes: maximum size of each; where a model takes media, a request may be as much larger.
        max_pixels: maximum pixels of an image, or of a frame of a video; all frames of a video together may have
            `max_media` times as many.
        max_audio_seconds: maximum length of a recording.
        max_video_seconds: maximum length of a video.
        max_video_frames: maximum frames of a video that the model reads; more are thinned out evenly.
        media_hosts: hosts that images and videos may be fetched from, "*.example.com" for all below one, "*" for any
            public one; none to fetch nothing.
        fetch_seconds: maximum time to fetch a file.
        response_store: bytes of answers to `/v1/responses` that are kept for each key, for `previous_response_id`; at
            most 1,000 of them, in memory only. 0 for none.
        max_choices: maximum answers to one request, over all its prompts.
        max_connections: maximum requests that are being answered; more get 503, probes excepted. As many connections
            may be open; beyond, the one that has had no request for longest is closed.
        request_seconds: maximum time of a request, waiting included.
        body_seconds: time in which a request's headers must arrive, and then its body.
        stall_seconds: time that an answer may wait without the client reading any of it.
        buffer_tokens: maximum tokens of an answer that may wait for its client; beyond, it is cancelled.
        drain_seconds: time in which requests may end after SIGTERM.
        memory: file that the drafter's memory begins with and is saved to.
        memory_strict: whether the server refuses to start where that file cannot be used, rather than to begin with an
            empty memory that is not saved.
        corpus: memory file that it begins with where `memory` does not exist yet; it is only read.
        base, memory_limit: as in `DraftingOptions`; with scope "key", the limit is for all memories together.
        memory_scope: "shared" for one memory, "key" for one per API key.
        save_seconds: time between two savings.

    Raises:
        UsageError: a value makes no sense, the server would listen beyond this machine without a key, or memories by
            key lack keys.
    """

    host: str = _server("127.0.0.1", "address to listen on", kinds.text("it is empty", metavar="ADDRESS"))
    port: int = _server(8000, "port to listen on, 0 for any; default: 8000", kinds.whole(0, 65535))
    api_keys: tuple[str, ...] = _server(
        (),
        "key that requests must carry; may be repeated. SPECULANT_API_KEYS keeps it out of the process list",
        kinds.ValueKind("KEY", read_key),
        flag="--api-key",
        several=True,
        secret=True,
    )
    api_key_file: Path | None = _server(None, "file with one API key per line; reloaded on SIGHUP", kinds.PATH)
    allow_no_key: bool = _server(False, "allow listening beyond this machine without a key", kinds.FLAG)
    cors_origins: tuple[str, ...] = _server(
        (),
        "let web pages of this origin send requests; may be repeated",
        kinds.text("it is empty", metavar="ORIGIN"),
        flag="--cors-origin",
        several=True,
    )
    allowed_hosts: tuple[str, ...] = _server(
        (),
        "allowed value of the Host header; may be repeated; default: loopback names on loopback without keys, else any",
        kinds.text("it is empty", metavar="NAME"),
        flag="--allowed-host",
        several=True,
    )
    log_format: str = _server("text", "format of the log: text or json", kinds.choice("text", "json"))
    aliases: tuple[str, ...] = _server(
        (),
        "a further name of the model; may be repeated",
        kinds.text("it is empty", metavar="NAME"),
        flag="--alias",
        several=True,
    )
    add_models: tuple[str, ...] = _server(
        (),
        "serve this model too, loaded when a request names it; may be repeated",
        kinds.named("a folder, a hub id or a .gguf file", metavar="NAME=PATH|ID"),
        flag="--add-model",
        several=True,
    )
    loras: tuple[str, ...] = _server(
        (),
        "serve the model with this LoRA adapter too, as a model of its own; may be repeated",
        kinds.named("the folder or hub id of an adapter", metavar="NAME=PATH|ID"),
        flag="--lora",
        several=True,
    )
    metrics_prefix: str = _server(
        OWN_PREFIX,
        "speculant_, or vllm: for metrics under the names that vLLM's dashboards use",
        kinds.choice(*METRIC_PREFIXES),
    )
    reasoning_parser: str = _server(
        "auto",
        f"how the model marks reasoning: auto, none, {', '.join(REASONING_PARSERS)}",
        kinds.choice("auto", "none", *REASONING_PARSERS),
    )
    tool_parser: str = _server(
        "auto",
        f"how the model writes tool calls: auto, {', '.join(TOOL_PARSERS)}",
        kinds.choice("auto", *TOOL_PARSERS),
    )
    per_request_metrics: bool = _server(False, "add drafting statistics to every response, as vLLM does", kinds.FLAG)
    lenient: bool = _server(
        False, "ignore unknown request parameters, and list them in the header x-speculant-unused", kinds.FLAG
    )
    max_concurrency: int = _limit(8, "maximum requests decoded together", kinds.whole(1, 1024))
    max_queue: int = _limit(64, "maximum waiting requests; more get 429", kinds.whole(0))
    prefix_cache: int | None = _limit(
        None,
        "maximum size of the cache of shared prompt prefixes, 0 for none; default: a tenth of the free memory, from "
        "256MiB to 8GiB",
        kinds.size(none=True),
    )
    models_memory: int = _limit(
        0,
        "size of the weights of all loaded models, beyond which the one unused for longest is unloaded; default: no "
        "limit",
        kinds.size(none=True),
    )
    prompt_chunk: int = _limit(
        0, "maximum prompt tokens between two rounds; default: 128 on CPUs, 512 on other devices", kinds.whole(0)
    )
    max_new_tokens: int = _limit(4096, "maximum new tokens per request", kinds.whole(1))
    max_prompt_tokens: int = _limit(
        0, "maximum prompt tokens per request; default: the model's positions", kinds.whole(0)
    )
    max_body_bytes: int = _limit(1 << 20, "maximum size of a request; default: 1MiB", kinds.size(min=1))
    max_media: int = _limit(8, "maximum images, recordings and videos per request", kinds.whole(0))
    max_media_bytes: int = _limit(
        20 << 20, "maximum size of an image, recording or video; default: 20MiB", kinds.size(min=1)
    )
    max_pixels: int = _limit(
        16 << 20, "maximum pixels of an image or of a frame of a video; default: 16,777,216", kinds.whole(1)
    )
    max_audio_seconds: float = _limit(1800.0, "maximum length of a recording", kinds.seconds())
    max_video_seconds: float = _limit(600.0, "maximum length of a video", kinds.seconds())
    max_video_frames: int = _limit(
        64, "maximum frames of a video that the model reads; more are thinned out evenly", kinds.whole(1)
    )
    media_hosts: tuple[str, ...] = _server(
        (),
        "allow fetching images and videos from this host, *.example.com or * for any; may be repeated; default: none",
        kinds.text("it is empty", metavar="HOST"),
        flag="--media-host",
        several=True,
    )
    fetch_seconds: float = _limit(10.0, "maximum time to fetch a file", kinds.seconds())
    response_store: int = _limit(
        64 << 20,
        "size of the stored responses of /v1/responses per key, 0 for none; default: 64MiB",
        kinds.size(none=True),
    )
    max_choices: int = _limit(16, "maximum choices per request", kinds.whole(1))
    max_connections: int = _limit(512, "maximum requests at a time; more get 503", kinds.whole(1))
    request_seconds: float = _limit(600.0, "maximum time per request, waiting included", kinds.seconds())
    body_seconds: float = _limit(
        20.0, "maximum time to receive a request's headers, and again its body", kinds.seconds()
    )
    stall_seconds: float = _limit(10.0, "cancel a response whose client reads nothing for this time", kinds.seconds())
    buffer_tokens: int = _limit(8192, "cancel a response with more unread tokens than this", kinds.whole(1))
    drain_seconds: int = _limit(
        30, "time for requests to finish after SIGTERM", kinds.whole(1, kinds.MAX_SECONDS, metavar="S")
    )
    memory: Path | None = option.reuse(
        DraftingOptions,
        "memory",
        help="load this memory if it exists; save to it every --save-seconds and at the end",
        kind=kinds.PATH,
    )
    memory_strict: bool = _memory(
        False,
        "refuse to start if the --memory file cannot be used, instead of learning without saving",
        kinds.FLAG,
    )
    corpus: Path | None = _memory(
        None,
        "memory to start from while --memory does not exist yet, as made by `speculant corpus`; read only",
        kinds.PATH,
    )
    base: Any = option.reuse(DraftingOptions, "base")
    memory_limit: int = option.reuse(DraftingOptions, "memory_limit")
    memory_scope: str = _memory("shared", "shared, or key for one memory per API key", kinds.choice("shared", "key"))
    save_seconds: float = _memory(300.0, "time between saves of the memory", kinds.seconds(), old_names=("save_every",))

    def __post_init__(self) -> None:
        option.read_values(self)
        if not self.loopback and not self.takes_keys and not self.allow_no_key:
            raise UsageError(
                f"host {self.host} is reachable from other machines, and there is no API key: whoever reaches it could "
                "use the model. Add --api-key (or SPECULANT_API_KEYS) or --api-key-file, or allow it by --allow-no-key."
            )
        if self.memory_scope == "key" and not self.takes_keys:
            raise UsageError("memory scope 'key' needs API keys; add --api-key, or leave it 'shared'.")
        names = [*self.aliases, *(each.partition("=")[0] for each in (*self.add_models, *self.loras))]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"two models would be called '{twice[0]}'; give each a name of its own.")
        if self.models_memory and not (self.add_models or self.loras):
            raise UsageError("models_memory would be ignored: one model is served. Add --add-model or --lora.")

    @property
    def takes_keys(self) -> bool:
        """Whether requests must carry a key."""
        return bool(self.api_keys) or self.api_key_file is not None

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def hosts(self) -> list[str]:
        """Names that the header `Host` may hold; empty for any."""
        return list(self.allowed_hosts or (LOOPBACK_NAMES if self.loopback and not self.takes_keys else ()))
