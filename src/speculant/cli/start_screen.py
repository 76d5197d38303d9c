"""The start screen of `speculant serve`, shown once requests are accepted: one line per fact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from speculant.cli.terminal import count_noun
from speculant.options.serving import split_named

if TYPE_CHECKING:
    from speculant.cli.loading import Loaded
    from speculant.options.serving import ServingOptions
    from speculant.serving.start_speed import StartSpeed

COLUMN = 12


def start_screen(
    loaded: Loaded,
    serving: ServingOptions,
    *,
    name: str,
    address: str,
    speed: StartSpeed | None,
    prefixes: int,
    keys: int = 0,
    keeps: bool = True,
    unused: Sequence[Path] = (),
) -> str:
    """Return the screen.

    Args:
        loaded: the loaded speculator.
        serving: the server's options.
        name: the model's name for clients.
        address: address of the server.
        speed: measured speed; None if not measured.
        prefixes: maximum bytes of the cache of shared prompt prefixes.
        keys: number of active API keys.
        keeps: whether the method keeps a memory.
        unused: memory files that could not be used.
    """
    lines = {
        "serving": f"{name} on {address}",
        "also": _also(serving),
        "method": f"{loaded.speculator.method}, up to {count_noun(serving.max_concurrency, 'text')} together",
        "speed": _speed(speed),
        "memory": _memory(serving, unused) if keeps else _start(serving),
        "prompts": f"up to {_mebibytes(prefixes)} of what they have in common is kept" if prefixes else "",
        "keys": _keys(keys),
        "threads": loaded.threads,
        "API": f"{address}/v1, metrics at {address}/metrics, schema at {address}/openapi.json",
        "stop": f"Ctrl-C or SIGTERM; running requests get {count_noun(serving.drain_seconds, 'second')}",
        "page": f"{address}/ shows decoding as it happens",
    }
    return "\n".join(f"{title:<{COLUMN}}{line}" for title, line in lines.items() if line)


def _speed(speed: StartSpeed | None) -> str:
    if speed is None:
        return ""
    plain = f"{_format_speed(speed.plain)} tokens/s without drafts"
    if speed.drafted is None:
        return plain
    return f"{_format_speed(speed.drafted)} tokens/s with drafts on a new text, {plain}"


def _format_speed(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"


def _also(serving: ServingOptions) -> str:
    names = [*split_named(serving.add_models), *split_named(serving.loras)]
    called = f"{', '.join(serving.aliases)} for the same model" if serving.aliases else ""
    others = f"{', '.join(names)}, loaded when asked for" if names else ""
    return "; ".join(filter(None, (called, others)))


def _memory(serving: ServingOptions, unused: Sequence[Path]) -> str:
    limit = f"up to {_mebibytes(serving.memory_limit)}"
    limit += " in all, one per key" if serving.memory_scope == "key" else ""
    if unused:
        return f"{limit}, not saved: {', '.join(map(str, unused))} cannot be used and is left unchanged"
    if serving.memory is None:
        return f"{limit}, not saved; --memory FILE keeps it"
    return f"{limit}, saved {'next to' if serving.memory_scope == 'key' else 'to'} {serving.memory}"


def _start(serving: ServingOptions) -> str:
    if serving.corpus is None:
        return "none: the method keeps none"
    return f"starts from {serving.corpus}, not saved: the method keeps none"


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):,.4g} MiB"


def _keys(count: int) -> str:
    if count:
        return f"{count_noun(count, 'API key')}; requests must carry one"
    return "none: anyone who reaches the address can use the server"
