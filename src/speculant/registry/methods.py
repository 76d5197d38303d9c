"""The table of methods; the command line, the README and the docs print it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from speculant.core.errors import ForeignMemoryError, UnknownMethodError, UnsupportedError
from speculant.registry.method import OWN, Method, load_object
from speculant.registry.own import find_own, is_own
from speculant.registry.rules import VERIFIERS, find_rule
from speculant.registry.tables.compositions import COMPOSITIONS
from speculant.registry.tables.draft_models import DRAFT_MODELS
from speculant.registry.tables.heads import HEADS
from speculant.registry.tables.self_drafting import SELF_DRAFTING
from speculant.registry.tables.training_free import TRAINING_FREE

if TYPE_CHECKING:  # numpy would make `speculant --help` wait
    from speculant.core.verifier import Verifier
    from speculant.memory.kind import MemoryKind

METHODS: Mapping[str, Method] = MappingProxyType(
    {method.name: method for method in (*TRAINING_FREE, *DRAFT_MODELS, *SELF_DRAFTING, *HEADS, *COMPOSITIONS)}
)

# Distillation of a drafter while it serves, for methods with one draft model or a head; training stands above the api.
ONLINE = "speculant.training.online.opening:open_online"
ONLINE_MEMORY = "speculant.training.online.memory:ONLINE"

# Frozen bases, which `mix` reads below its memory and never writes.
BASE_MEMORY = "speculant.drafters.mix.base_memory:BASE"


def find_memory_kind(kind: str) -> MemoryKind:
    """Return the memory kind of that name, which is the `kind` in memory files.

    Raises:
        ForeignMemoryError: no method reads it.
    """
    references = [method.memory for method in METHODS.values() if method.memory is not None]
    for reference in dict.fromkeys([*references, ONLINE_MEMORY, BASE_MEMORY]):
        found: MemoryKind = load_object(reference)
        if found.name == kind:
            return found
    raise ForeignMemoryError(
        f"this version of Speculant has no method that reads memories of kind '{kind}'. "
        "Use the version that wrote the file."
    )


def methods_reading(kind: str) -> list[Method]:
    """Return the methods whose drafters load memory files of that kind, as a memory or as a corpus.

    Raises:
        ForeignMemoryError: none does.
    """
    found = find_memory_kind(kind)
    if found is load_object(ONLINE_MEMORY):
        return [method for method in METHODS.values() if learns_online(method)]
    if found is load_object(BASE_MEMORY):
        return [method for method in METHODS.values() if method.takes_bases]
    return [
        method
        for method in METHODS.values()
        if method.corpus == kind or (method.memory is not None and load_object(method.memory) is found)
    ]


def learns_online(method: Method) -> bool:
    """Return whether a method drafts with one model or head of the target's vocabulary, and keeps no other memory."""
    trained = bool(method.heads) or (method.takes_draft_model and not method.drafts_text)
    return trained and method.memory is None and method.exactness == "lossless" and method.name != "pearl"


def learns_from_text(method: Method) -> bool:
    """Return whether a method's memory learns from committed tokens alone, so that it can learn those of others."""
    return method.memory is not None and method.replayable


def drafts_from_text(method: Method) -> bool:
    """Return whether a method drafts chosen tokens from text alone, so that it can look ahead beside other sources."""
    return method.replayable and not method.samples and method.name != "none" and method.family != OWN


def find_method(name: str) -> Method:
    """Return the method of that name; "module:Class" names a user's own drafter.

    Raises:
        UnknownMethodError: there is none; the message suggests the nearest name.
        UsageError: there is no such class, or it is no drafter.
    """
    if is_own(name):
        return find_own(name)
    if isinstance(name, str) and name in METHODS:
        return METHODS[name]
    raise UnknownMethodError(
        f"there is no method {name!r}. {_nearest(name, METHODS)}`speculant methods` lists them: {', '.join(METHODS)}."
    )


def default_method(
    own: str | None = None, *, verifier: str | None = None, online: bool = False, settings: Any = None
) -> str:
    """Return the method that drafts where none is named: `mix`, united with the head if there is one.

    A head drafts alone where it is distilled meanwhile, under rules that take drawn tokens, since the tokens of a union
    are chosen, and where settings are given that only its own method has.

    Args:
        own: the method that drafts with the head alone; None without a head.
        verifier: the acceptance rule that was named, or None.
        online: whether the head learns while it drafts.
        settings: that were given: an object of a settings class, a dict, texts "name=value", or None.

    Raises:
        UsageError: there is no such rule.
    """
    if own is None:
        return "mix"
    if settings and not _has_settings(METHODS["mix-head"], settings):
        return own
    drawn = verifier is not None and "iid" in find_rule(verifier, lossy=True)[0].drafts
    return own if online or (drawn and find_method(own).samples) else "mix-head"


def _has_settings(method: Method, settings: Any) -> bool:
    """Return whether settings, in any form, are all of one method."""
    kind = method.settings_class()
    if kind is None or is_dataclass(settings):
        return kind is not None and isinstance(settings, kind)
    names = [str(each).partition("=")[0].strip().replace("-", "_") for each in settings]  # of a dict, or "name=value"
    return set(names) <= {each.name for each in fields(kind)}


def build_verifier(method: str | Method, name: str | None = None, *, lossy: bool = False) -> Verifier:
    """Return an acceptance rule: the one of that name, see `find_rule`, or the method's own.

    Raises:
        UsageError: there is no such rule, or no such setting of it.
        UnsupportedError: the method's drafts cannot be verified by it, or it is lossy without consent.
    """
    check_verifier(method, name, lossy=lossy)
    found = method if isinstance(method, Method) else find_method(method)
    rule, settings = find_rule(found.verifier if name is None else name, lossy=lossy)
    return rule.build(settings)


def check_verifier(method: str | Method, name: str | None = None, *, lossy: bool = False) -> None:
    """Refuse an acceptance rule that the method's drafts cannot be verified by; raises as `build_verifier`."""
    found = method if isinstance(method, Method) else find_method(method)
    rule, _ = find_rule(found.verifier if name is None else name, lossy=lossy)
    if rule.name not in found.verifiers:
        kinds = {"": "chosen", "iid": "drawn with replacement", "distinct": "drawn without replacement"}
        kinds["mixed"] = "partly drawn, partly chosen"
        kind = kinds.get(found.samples, "made for contrastive decoding")
        raise UnsupportedError(
            f"drafts of the method '{found.name}' are {kind}, which the verifier '{rule.name}' does not take. "
            f"Use {', '.join(each for each in found.verifiers if not VERIFIERS[each].lossy) or found.verifier}."
        )


def _nearest(name: Any, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
    return f"Did you mean '{near[0]}'? " if near else ""
