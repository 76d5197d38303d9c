"""The systems of a benchmark, selected by name; plain decoding always comes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from speculant.api.draft_caches import open_draft_caches
from speculant.api.engines import describe_model, find_engine
from speculant.api.speculator import Speculator
from speculant.bench.suite.rows import PLAIN
from speculant.bench.systems.bases import takes_bases
from speculant.bench.systems.forced import check_forced
from speculant.bench.systems.hf import HuggingFace
from speculant.bench.systems.hf_names import ASSISTED, PREFIX, check_hf
from speculant.bench.systems.llamacpp import LLAMACPP, LlamaCpp, check_llamacpp
from speculant.bench.systems.system import SpeculantSystem, System
from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.mix.base import MixBase
from speculant.engines.hf.cpu.accelerate import CpuAcceleration
from speculant.registry import METHODS, find_method


def parse_methods(
    names: str,
    *,
    forced: bool,
    draft_model: bool,
    head: str | None = None,
    bundled: bool = False,
    sampled: bool = False,
) -> list[str]:
    """Return the methods in a list "NAME,...", each once, with plain decoding first in any case.

    Args:
        names: the list.
        forced: whether recorded outputs are followed.
        draft_model: whether one is given, for methods that need it.
        head: kind of the given head, or None.
        bundled: whether the target has its own heads: the bundled model, and models with MTP layers.
        sampled: whether tokens are sampled at a temperature.

    Raises:
        UnknownMethodError, UsageError: there is no such method, or none is named.
        UnsupportedError: it cannot be measured this way.
    """
    given = [name.strip() for name in names.split(",") if name.strip()]
    if not given:
        raise UsageError("no method was named. `speculant methods` lists them.")
    methods = list(dict.fromkeys([PLAIN, *given]))
    for name in methods:
        if forced:
            check_forced(name)
        if name.startswith(PREFIX):
            check_hf(name, draft_model=draft_model)
        elif name == LLAMACPP:
            check_llamacpp(sampled=sampled)
        else:
            method = find_method(name)
            method.check_draft_model(given=draft_model and method.takes_draft_model)
            if method.heads and (head is not None or not bundled):
                method.check_head(head)
    return methods


def takes_draft_model(name: str) -> bool:
    """Return whether a system drafts with a draft model."""
    return name == ASSISTED or (name in METHODS and find_method(name).takes_draft_model)


def takes_head(name: str) -> bool:
    """Return whether a system drafts with a trained head."""
    return name in METHODS and bool(find_method(name).heads)


def build_systems(
    methods: Sequence[str],
    model: Any,
    *,
    draft_model: Any = None,
    tokenizer: Any = None,
    draft_tokenizer: Any = None,
    head: Any = None,
    nodes: int | str | None,
    max_depth: int | None = None,
    memory_limit: int,
    fast: bool | CpuAcceleration | None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    bases: Sequence[MixBase] = (),
) -> list[System]:
    """Return a system for each method. The model and the draft model are prepared once for all of them.

    Args:
        methods: result of `parse_methods`.
        model: the target.
        draft_model: a loaded model for methods that need one, a result of `open_draft_caches`, or None.
        tokenizer, draft_tokenizer: tokenizers of the target and the draft model, which are compared, or None.
        head: for methods that need one: a folder, a hub id or a result of `open_head`; None for the bundled model's
            own.
        nodes: maximum nodes per draft, "auto", or None for the device's default.
        max_depth: maximum depth of a draft; None for as deep as the method drafts.
        memory_limit: maximum bytes of each memory.
        fast: see `Speculator.from_transformers`.
        settings: settings of drafters by method; other methods use the defaults.
        bases: for the methods that take any, see `bases.open_target_bases`.
    """
    prepared = Speculator.from_transformers(model, method=PLAIN, fast=fast).fast
    options: dict[str, Any] = {"nodes": nodes, "max_depth": max_depth, "memory_limit": memory_limit, "fast": prepared}
    drafting = [name for name in methods if takes_draft_model(name) and name != ASSISTED]
    caches = None
    if drafting:
        caches = open_draft_caches(
            draft_model,
            find_engine(model).vocabulary(model),
            tokenizer=tokenizer,
            draft_tokenizer=draft_tokenizer,
            target=model,
            text=all(find_method(name).drafts_text for name in drafting),
        )

    def build(name: str) -> System:
        if name.startswith(PREFIX):
            if not (facts := describe_model(model)).generates:
                raise UnsupportedError(f"{name} needs a model of transformers, and this is {facts.form}; leave it out.")
            return HuggingFace(name, model, draft_model)
        if name == LLAMACPP:
            return LlamaCpp(model)
        own = options | {
            "settings": settings.get(name),
            "draft_model": caches if name in drafting else None,
            "head": head if takes_head(name) else None,
            "base": bases if takes_bases(name) else None,
            "lossy": find_method(name).exactness != "lossless",  # naming it is consent: timed output is not served
        }
        return SpeculantSystem(name, partial(Speculator.from_transformers, model, method=name, **own))

    return [build(name) for name in methods]
