"""The table of methods; the command line, the README and the docs print it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from speculant.core.errors import UnknownMethodError, UnsupportedError, UsageError
from speculant.core.references import load_object
from speculant.registry.context import BuildContext
from speculant.registry.method import OWN, Method
from speculant.registry.own import find_own, is_own
from speculant.registry.renamed import rename_method
from speculant.registry.rules import VERIFIERS, find_rule
from speculant.registry.tables.compositions import COMPOSITIONS
from speculant.registry.tables.draft_models import DRAFT_MODELS
from speculant.registry.tables.heads import HEADS
from speculant.registry.tables.self_drafting import SELF_DRAFTING
from speculant.registry.tables.training_free import TRAINING_FREE

if TYPE_CHECKING:  # numpy would make `speculant --help` wait
    from speculant.core.drafter import Drafter
    from speculant.core.verifier import Verifier

METHODS: Mapping[str, Method] = MappingProxyType(
    {method.name: method for method in (*TRAINING_FREE, *DRAFT_MODELS, *SELF_DRAFTING, *HEADS, *COMPOSITIONS)}
)


def learns_online(method: Method) -> bool:
    """Return whether a method drafts with a model or head of the target's vocabulary and has no other memory."""
    trained = bool(method.heads) or (method.takes_draft_model and not method.drafts_text)
    return trained and method.memory is None and method.exactness == "lossless" and method.distillable


def learns_from_text(method: Method) -> bool:
    """Return whether a method's memory learns from committed tokens alone, so that it can learn from other replicas."""
    return method.memory is not None and method.replayable


def drafts_from_text(method: Method) -> bool:
    """Return whether a method drafts chosen tokens from text alone, so that it can look ahead for another drafter."""
    return method.replayable and method.drafts and not method.samples and method.family != OWN


def find_method(name: str) -> Method:
    """Return the method of that name; "module:Class" names a user's own drafter.

    Raises:
        UnknownMethodError: there is none; the message suggests the closest name.
        UsageError: there is no such class, or it is not a drafter.
    """
    if is_own(name):
        return find_own(name)
    new, presets = rename_method(name) if isinstance(name, str) else ("", {})
    if new in METHODS:
        return replace(METHODS[new], presets=presets) if presets else METHODS[new]
    raise UnknownMethodError(
        f"there is no method {name!r}. {_nearest(name, METHODS)}`speculant methods` lists them: {', '.join(METHODS)}."
    )


def default_method(
    own: str | None = None,
    *,
    verifier: str | None = None,
    online: bool = False,
    settings: Any = None,
    draft_model: bool = False,
) -> str:
    """Return the default method: `mix`, combined with the head if there is one, or `draft-model` with a draft model.

    A head drafts alone if it is distilled online, if the acceptance rule takes sampled tokens (those of the combination
    are chosen), or if settings are given that only its own method has.

    Args:
        own: the method that drafts with the head alone; None without a head.
        verifier: the acceptance rule that the user named, or None.
        online: whether the head learns while it drafts.
        settings: settings that the user gave: an object of a settings class, a dict, texts "name=value", or None.
        draft_model: whether the user named a draft model.

    Raises:
        UsageError: there is no such rule.
    """
    if own is None:
        return "draft-model" if draft_model else "mix"
    if settings and not _has_settings(METHODS["mix-head"], settings):
        return own
    drawn = verifier is not None and "iid" in find_rule(verifier, lossy=True)[0].drafts
    return own if online or (drawn and find_method(own).samples) else "mix-head"


def _has_settings(method: Method, settings: Any) -> bool:
    """Return whether a method has all of the given settings, which may be in any form."""
    kind = method.settings_class()
    if kind is None or is_dataclass(settings):
        return kind is not None and isinstance(settings, kind)
    names = [str(each).partition("=")[0].strip().replace("-", "_") for each in settings]  # dict keys, or "name=value"
    return set(names) <= {each.name for each in fields(kind)}


def build_drafter(method: str | Method, context: BuildContext) -> Drafter:
    """Import and construct the drafter of a method.

    Raises:
        UnknownMethodError: there is no such method.
        UnsupportedError: the method skips layers of the target or rows of its cache, which is not possible here.
        UsageError: a draft model or head is missing, not taken or of the wrong kind, or a setting does not exist.
    """
    found = method if isinstance(method, Method) else find_method(method)
    found.check_draft_model(given=context.open_cache is not None)
    found.check_head(None if context.head is None else context.head.kind)
    inner = BuildContext(vocabulary=context.vocabulary, tokenizer=context.tokenizer, memory_limit=context.memory_limit)
    settings = found.read_settings(context.settings)
    ready = replace(context, settings=settings, build_inner=partial(_build_inner, context=inner))
    ready = replace(ready, build_auxiliary=partial(_build_auxiliary, context=inner))
    return found.builder(load_object(found.drafter), ready)


def _build_inner(name: str, *, context: BuildContext) -> Drafter:
    """Build the drafter of a method that drafts for a draft model.

    Raises:
        UnknownMethodError: there is no such method.
        UsageError: the method itself needs a model.
    """
    method = find_method(name)
    if not method.replayable:
        raise UsageError(f"the method '{name}' cannot draft for a draft model; use 'mix', 'maxgram' or 'lookup'.")
    return build_drafter(method, context)


def _build_auxiliary(name: str, *, context: BuildContext) -> Drafter:
    """Build the drafter of a method without a model that drafts for the target in combination with another one.

    Raises:
        UnknownMethodError: there is no such method.
        UsageError: the method needs a model, samples its tokens, or does not draft.
    """
    method = find_method(name)
    models = method.takes_draft_model or method.takes_layers or method.takes_rows or method.heads
    if models or method.samples or not method.drafts:
        raise UsageError(
            f"the method '{name}' cannot be combined with another one; use 'recycling' or 'mix', or the method "
            "'sam-head' for a trained head."
        )
    return build_drafter(method, context)


def build_verifier(method: str | Method, name: str | None = None, *, lossy: bool = False) -> Verifier:
    """Build the acceptance rule of that name, see `find_rule`, or the method's default.

    Raises:
        UsageError: there is no such rule, or it has no such setting.
        UnsupportedError: it cannot verify the method's drafts, or it is lossy and `lossy` is not set.
    """
    check_verifier(method, name, lossy=lossy)
    found = method if isinstance(method, Method) else find_method(method)
    rule, settings = find_rule(found.verifier if name is None else name, lossy=lossy)
    return rule.build(settings)


def check_verifier(method: str | Method, name: str | None = None, *, lossy: bool = False) -> None:
    """Check that an acceptance rule can verify the method's drafts; raises the errors of `build_verifier`."""
    found = method if isinstance(method, Method) else find_method(method)
    rule, _ = find_rule(found.verifier if name is None else name, lossy=lossy)
    if rule.name not in found.verifiers:
        kinds = {"": "chosen", "iid": "drawn with replacement", "distinct": "drawn without replacement"}
        kinds["mixed"] = "partly sampled, partly chosen"
        kind = kinds.get(found.samples, "made for contrastive decoding")
        raise UnsupportedError(
            f"drafts of the method '{found.name}' are {kind}, which the verifier '{rule.name}' does not support. Use "
            f"{', '.join(each for each in found.verifiers if not VERIFIERS[each].lossy) or found.verifier}."
        )


def _nearest(name: Any, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
    return f"Did you mean '{near[0]}'? " if near else ""
