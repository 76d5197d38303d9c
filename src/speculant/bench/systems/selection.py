"""Who takes part in a benchmark: methods by name, plain decoding always first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from speculant.api.speculator import Speculator
from speculant.bench.systems.forced import check_forced
from speculant.bench.systems.hf import PREFIX, HuggingFace, check_hf
from speculant.bench.systems.llamacpp import LLAMACPP, LlamaCpp, check_llamacpp
from speculant.bench.systems.system import PLAIN, Contestant, Own
from speculant.core.errors import UsageError
from speculant.registry import find_method


def named_methods(names: str, *, forced: bool, assisted: bool, sampled: bool = False) -> list[str]:
    """Return the methods of a list "NAME,...", each once, plain decoding first whether or not it is named.

    Args:
        names: the list.
        forced: whether recorded outputs are followed.
        assisted: whether there is a model for hf:assisted.
        sampled: whether tokens are drawn at a temperature.

    Raises:
        UnknownMethodError, UsageError: there is no such method, or none was named.
        UnsupportedError: it cannot be measured this way.
    """
    given = [name.strip() for name in names.split(",") if name.strip()]
    if not given:
        raise UsageError("no method was named. `speculant methods` lists them.")
    methods = list(dict.fromkeys([PLAIN, *given]))
    for name in methods:
        if name.startswith(PREFIX):
            check_hf(name, assisted=assisted)
        elif name == LLAMACPP:
            check_llamacpp(sampled=sampled)
        else:
            find_method(name)
        if forced:
            check_forced(name)
    return methods


def line_up(
    methods: Sequence[str], model: Any, *, assistant: Any, nodes: int | str | None, memory_limit: int, fast: bool | None
) -> list[Contestant]:
    """Return the contestants of those names.

    Args:
        methods: of `named_methods`.
        model: the target.
        assistant: the drafting model of hf:assisted, or None.
        nodes: most nodes per draft, "auto", or None for the device's default.
        memory_limit: bytes the memory of each may take.
        fast: see `Speculator.from_transformers`.
    """
    options: dict[str, Any] = {"nodes": nodes, "memory_limit": memory_limit, "fast": fast}

    def contestant(name: str) -> Contestant:
        if name.startswith(PREFIX):
            return HuggingFace(name, model, assistant)
        if name == LLAMACPP:
            return LlamaCpp(model)
        return Own(name, partial(Speculator.from_transformers, model, method=name, **options))

    return [contestant(name) for name in methods]
