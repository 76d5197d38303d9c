"""The server's settings: where it listens, who may ask, and every limit.

Flags of `speculant serve` come before environment variables `SPECULANT_*`, and these before the lines of a file of the
same names (`SPECULANT_PORT=8000`), which `--config` names.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PositiveInt,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from speculant.api.options import check_bytes
from speculant.core.drafter import MEMORY_LIMIT
from speculant.core.environment import PREFIX, check_variables
from speculant.core.errors import UsageError
from speculant.serving.config_file import setting_lines

LEAST_BYTES = 1 << 20  # of a memory
MOST_SECONDS = 10_000_000  # four months; timers cannot wait for ever
Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS, allow_inf_nan=False)]
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")


class ServingSettings(BaseSettings):
    """Where the server listens, and its limits.

    Attributes:
        host, port: where it listens.
        api_keys: who may ask; empty for anyone who can reach it.
        allow_no_key: whether it may listen beyond this machine without keys.
        cors_origins: pages of which origins may ask from a browser; empty for none.
        allowed_hosts: names of the server in the header `Host`; empty for the loopback names where it listens on
            loopback without keys, which keeps other sites' pages from reaching it by a name of their own, else any.
        max_body_bytes: of a request.
        max_prompt_tokens: of a request; 0 for as many as the model has positions.
        max_new_tokens: that a request may ask for, and gets if it asks for none.
        max_choices: answers to one request, over all its prompts.
        max_concurrency: requests decoded together.
        max_queue: requests that wait beyond these; more get 429.
        prefix_cache: bytes, or text such as "1GB", in which what prompts have in common is kept, such as system
            prompts; 0 for nothing. Prompts share with those of the same key only, since how much was cached tells what
            others have asked.
        prompt_chunk: the most tokens of prompts that are read between two rounds, which is how long streams may pause;
            0 for as many as suit the device.
        max_connections: requests that are being answered; more get 503, `/health` excepted. As many connections may be
            open; beyond, the one that has had no request for longest is closed.
        request_seconds: that a request may take, waiting included.
        body_seconds: in which a request's headers must arrive, and then its body.
        stall_seconds: that an answer may wait without the client reading any of it.
        buffer_tokens: of an answer that may wait for its client; beyond, it is cancelled.
        drain_seconds: in which requests may end after SIGTERM.
        memory: the file that the drafter's memory begins with and is saved to.
        corpus: a memory file that it begins with where `memory` does not exist yet; it is only read.
        base: frozen bases under the memories, separated by commas in the environment; None for those of the user's
            folder that fit, empty ("none" in the environment) for none.
        memory_strict: whether the server refuses to start where the memory's file cannot be used, rather than to begin
            with an empty memory that is not saved.
        memory_limit: bytes, or text such as "1GB", that the memory may take, at least 1 MiB; with scope "key", of all
            memories together.
        memory_scope: "shared" for one memory, "key" for one per API key.
        save_seconds: between two savings.
        per_request_metrics: whether answers hold `metrics.speculative_decoding`.
        log_format: "text" for key=value lines, "json" for JSON lines.
    """

    model_config = SettingsConfigDict(env_prefix="SPECULANT_", extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    allow_no_key: bool = False
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    max_body_bytes: PositiveInt = 1 << 20
    max_prompt_tokens: int = Field(default=0, ge=0)
    max_new_tokens: PositiveInt = 4096
    max_choices: PositiveInt = 16
    max_concurrency: int = Field(default=8, ge=1, le=1024)
    max_queue: int = Field(default=64, ge=0)
    prefix_cache: int = 256 << 20
    prompt_chunk: int = Field(default=0, ge=0)
    max_connections: PositiveInt = 512
    request_seconds: Seconds = 600.0
    body_seconds: Seconds = 20.0
    stall_seconds: Seconds = 10.0
    buffer_tokens: PositiveInt = 8192
    drain_seconds: int = Field(default=30, ge=1, le=MOST_SECONDS)
    memory: Path | None = None
    corpus: Path | None = None
    base: Annotated[tuple[Path, ...] | None, NoDecode] = None
    memory_strict: bool = False
    memory_limit: int = MEMORY_LIMIT
    memory_scope: Literal["shared", "key"] = "shared"
    save_seconds: Seconds = 300.0
    per_request_metrics: bool = False
    log_format: Literal["text", "json"] = "text"

    @field_validator("api_keys", "cors_origins", "allowed_hosts", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Return a comma-separated text as the tuple of its parts."""
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("base", mode="before")
    @classmethod
    def _bases(cls, value: Any) -> Any:
        """Return a comma-separated text as the tuple of its parts; "none" for no bases."""
        if value == "none":
            return ()
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("memory_limit", "prefix_cache", mode="before")
    @classmethod
    def _bytes(cls, value: Any, info: ValidationInfo) -> int:
        """Return a number of bytes, as the library and the settings of integrations read it."""
        name = info.field_name or ""
        try:
            found = check_bytes(value, name=name, least=0)
        except UsageError as error:
            raise ValueError(str(error).removeprefix(f"{name} ")) from None
        if found < LEAST_BYTES and (found or name == "memory_limit"):
            raise ValueError(f"must be at least 1MiB, not {value}; a number without a unit is bytes: write 256MiB")
        return found

    @field_validator("api_keys")
    @classmethod
    def _usable(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for key in keys:
            text = key.get_secret_value()
            if not text or not text.isascii() or not text.isprintable() or " " in text:
                raise ValueError("a key must be of printable ASCII characters, without spaces")
        return keys

    @model_validator(mode="after")
    def _consistent(self) -> ServingSettings:
        if not self.loopback and not self.api_keys and not self.allow_no_key:
            raise ValueError(
                f"host {self.host} is reachable from other machines, and there is no API key: whoever reaches it could "
                "use the model. Add --api-key (or SPECULANT_API_KEYS), or allow it by --allow-no-key"
            )
        if self.memory_scope == "key" and not self.api_keys:
            raise ValueError("memory scope 'key' needs API keys; add --api-key, or leave it 'shared'")
        return self

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
        return list(self.allowed_hosts or (LOOPBACK_NAMES if self.loopback and not self.api_keys else ()))


def load_settings(flags: dict[str, Any], *, config: str | Path | None = None) -> ServingSettings:
    """Return the settings.

    Args:
        flags: values of the command line; None for what was not given.
        config: a file with lines SPECULANT_NAME=value, or None.

    Raises:
        FileError: the file cannot be read.
        UsageError: a value is wrong, or the environment or the file names a setting that there is not; the message says
            where.
    """
    check_variables(os.environ, known=ServingSettings.model_fields, what="a setting of `speculant serve`")
    lines = {} if config is None else setting_lines(config, ServingSettings.model_fields)
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        read: Any = ServingSettings  # its constructor takes more than its fields
        settings: ServingSettings = read(_env_file=config, _env_file_encoding="utf-8", **given)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ").rstrip(".")
        name = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] != "value_error" and isinstance(first["input"], str):  # our own messages quote what may be
            message = f"{message[0].lower()}{message[1:]}, not {first['input']!r}"
        if not name:
            raise UsageError(f"{message}.") from None
        place = name if name in given else _place(PREFIX + name.upper(), config, lines.get(name))
        raise UsageError(f"{place}: {message}.") from None
    return settings


def _place(variable: str, config: str | Path | None, line: int | None) -> str:
    """Return where a setting that is no flag was given: the environment comes before the file."""
    if line is None or any(name.upper() == variable for name in os.environ):
        return f"the environment variable {variable}"
    return f"{config}, line {line}: {variable}"
