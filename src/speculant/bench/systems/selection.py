"""The systems of a benchmark, selected by name; plain decoding always comes first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from speculant.api.speculator import Speculator
from speculant.bench.systems.forced import check_forced
from speculant.bench.systems.hf import PREFIX, HuggingFace, check_hf
from speculant.bench.systems.llamacpp import LLAMACPP, LlamaCpp, check_llamacpp
from speculant.bench.systems.system import PLAIN, SpeculantSystem, System
from speculant.core.errors import UnsupportedError, UsageError
from speculant.registry import find_method


def parse_methods(names: str, *, forced: bool, assisted: bool, sampled: bool = False) -> list[str]:
    """Return the methods of a list "NAME,...", each once, with plain decoding first whether or not it is named.

    Args:
        names: the list.
        forced: whether recorded outputs are followed.
        assisted: whether there is a draft model for hf:assisted.
        sampled: whether tokens are sampled at a temperature.

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
        elif find_method(name).takes_draft_model:
            raise UnsupportedError(
                f"bench loads no draft model for the method '{name}'. Leave it out, or measure it with "
                "speculant generate --compare."
            )
        if forced:
            check_forced(name)
    return methods


def build_systems(
    methods: Sequence[str], model: Any, *, assistant: Any, nodes: int | str | None, memory_limit: int, fast: bool | None
) -> list[System]:
    """Return a system for each method.

    Args:
        methods: of `parse_methods`.
        model: the target.
        assistant: the draft model of hf:assisted, or None.
        nodes: most nodes per draft, "auto", or None for the device's default.
        memory_limit: bytes that the memory of each may take.
        fast: see `Speculator.from_transformers`.
    """
    options: dict[str, Any] = {"nodes": nodes, "memory_limit": memory_limit, "fast": fast}

    def build(name: str) -> System:
        if name.startswith(PREFIX):
            return HuggingFace(name, model, assistant)
        if name == LLAMACPP:
            return LlamaCpp(model)
        return SpeculantSystem(name, partial(Speculator.from_transformers, model, method=name, **options))

    return [build(name) for name in methods]
