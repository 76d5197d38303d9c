"""Opens what drafts for a target: method, head, draft models, bases and acceptance rule, from the options of a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.api.bases import open_bases
from speculant.api.engine_checks import check_engine_can
from speculant.api.engines import find_engine
from speculant.api.loading import bundled_head_folder, means_bundled
from speculant.api.options import check_alone, check_nodes
from speculant.core.byte_size import MEMORY_LIMIT, check_bytes
from speculant.core.drafter import Drafter, Loadable, Persistent
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.verifier import Verifier
from speculant.drafters.checked import CheckedDrafter, add_checks
from speculant.memory.file import read_header
from speculant.memory.fingerprint import tokenizer_fingerprint
from speculant.options.drafting import DraftingOptions
from speculant.registry import (
    BuildContext,
    Method,
    build_drafter,
    build_verifier,
    default_method,
    find_method,
    method_of,
)

if TYPE_CHECKING:
    from speculant.api.draft_caches import DraftCaches
    from speculant.drafters.heads.drafter import LoadedHead
    from speculant.drafters.mix.base import MixBase


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drafting:
    """A drafter for one target, and the rule that accepts its drafts.

    Attributes:
        drafter: proposes tokens; owns the memory.
        method: its method's name.
        verifier: the acceptance rule.
        bases: the frozen bases under the drafter's memory.
        notes: messages for the user.
    """

    drafter: Drafter
    method: str
    verifier: Verifier
    bases: tuple[MixBase, ...]
    notes: tuple[str, ...]


def open_drafting(model: Any, tokenizer: Any, asked: DraftingOptions) -> Drafting:
    """Return a drafter for a loaded target; options are checked before anything is loaded.

    Args:
        model: a transformers model, a PEFT model around one, or a model of another engine.
        tokenizer: its tokenizer, or None.
        asked: the user's options.

    Raises:
        UnknownMethodError, UsageError, UnsupportedError: the method, the model or an option cannot be used.
    """
    from speculant.api.draft_caches import check_merged, drafts_of  # imported here, since these load the engine

    own = _own_drafter(asked)
    if means_bundled(asked.head):
        asked = replace(asked, head=bundled_head_folder(None if asked.method is None else find_method(asked.method)))
    check_engine_can(model, tokenizer, method=asked.method, head=asked.head)
    kind = find_engine(model)
    if own is None and not asked.strict and not kind.can_verify(model):
        asked = _keep_memory_alone(asked)
    head, notes = (None, ()) if kind.without_layers else _find_head(model, asked)
    method = _choose_method(asked, own, head)
    if head is None and method.heads:
        from speculant.api.heads import own_head

        head = own_head(method, model, fast=asked.fast is not False)
    _check_options(asked, own, method)
    vocabulary = kind.vocabulary(model)
    drafts = drafts_of(method, model, tokenizer, asked.draft_model, asked.draft_tokenizer)
    if len(drafts) > 1:
        check_merged(asked.verifier, lossy=asked.lossy)
    verifier = build_verifier(method, asked.verifier, lossy=asked.lossy)
    fingerprint = tokenizer_fingerprint(tokenizer, vocabulary)
    bases = open_bases(method, asked.base, vocabulary=vocabulary, tokenizer=fingerprint)
    drafter: Drafter
    if own is not None:
        drafter = own
    else:
        context = BuildContext(
            vocabulary=vocabulary,
            tokenizer=fingerprint,
            memory_limit=check_bytes(asked.memory_limit),
            bases=bases,
            settings=asked.settings,
            head=head,
            sampled=verifier.sampled,
        )
        drafter = build_drafter(method, _add_target_parts(context, method, model, drafts))
    if asked.online:
        from speculant.api.online import open_online

        drafter = open_online(
            drafter, asked.online, target=model, method=method, drafts=drafts, head=head, tokenizer=fingerprint
        )
    if asked.share is not None:
        from speculant.sharing.opening import open_sharing

        drafter = open_sharing(drafter, asked.share, method=method, tokenizer=fingerprint, vocabulary=vocabulary)
    notes = (*(note for each in drafts for note in each.notes), *(head.notes if head else notes))
    return Drafting(drafter=drafter, method=method.name, verifier=verifier, bases=tuple(bases), notes=notes)


def _own_drafter(asked: DraftingOptions) -> CheckedDrafter | None:
    """Return the user's own drafter with its drafts checked; None if a method is to be built."""
    if asked.drafter is None:
        return None
    names = ("method", "settings", "draft_model", "head", "online", "share")
    limit = None if asked.memory_limit == MEMORY_LIMIT else asked.memory_limit
    check_alone({name: getattr(asked, name) for name in names} | {"memory_limit": limit})
    return add_checks(asked.drafter)


def _keep_memory_alone(asked: DraftingOptions) -> DraftingOptions:
    """Return the options for a target without drafts: a memory is still loaded and saved, nothing else is."""
    method = asked.method or "mix"
    return replace(
        asked,
        method=method if find_method(method).replayable else "none",
        verifier=None,
        draft_model=None,
        draft_tokenizer=None,
        head=None,
        online=None,
        share=None,
    )


def _find_head(model: Any, asked: DraftingOptions) -> tuple[LoadedHead | None, tuple[str, ...]]:
    """Return the head that was named, or else the one in the checkpoint of a target for which nothing was chosen."""
    compiled = asked.fast is not False
    if asked.head is not None:
        from speculant.api.heads import open_head  # imported here, since most methods need no head

        return open_head(asked.head, model, fast=compiled), ()
    chosen = (asked.method, asked.drafter, asked.settings, asked.draft_model, asked.share)
    if asked.online or any(each is not None for each in chosen):
        return None, ()
    from speculant.api.native_heads import find_native_head

    return find_native_head(model, fast=compiled)


def _choose_method(asked: DraftingOptions, own: CheckedDrafter | None, head: LoadedHead | None) -> Method:
    if own is not None:
        return method_of(own.inner)
    if asked.method is not None:
        return find_method(asked.method)
    return find_method(
        default_method(
            None if head is None else head.method,
            verifier=asked.verifier,
            online=bool(asked.online),
            settings=asked.settings,
            draft_model=asked.draft_model is not None,
        )
    )


def _check_options(asked: DraftingOptions, own: CheckedDrafter | None, method: Method) -> None:
    """Refuse options that contradict the method, or whose values mean nothing."""
    from speculant.engines.hf.cpu.accelerate import CpuAcceleration

    check_nodes(asked.nodes)
    if not (asked.fast is None or isinstance(asked.fast, bool | CpuAcceleration)):
        raise UsageError(f"fast must be True, False, None or another speculator's acceleration, not {asked.fast!r}.")
    keeps = method.keeps_memory if own is None else isinstance(own, Persistent)
    if asked.memory is not None and not keeps and not asked.online:
        if not (method.loads_memory if own is None else isinstance(own, Loadable)):
            raise UnsupportedError(f"the method '{method.name}' keeps no memory; leave out `memory`, or use 'mix'.")
        read_header(Path(asked.memory))  # a file that is never written must exist
    if asked.share is not None:
        from speculant.sharing.opening import check_sharing

        check_sharing(method)


def _add_target_parts(context: BuildContext, method: Method, model: Any, drafts: Sequence[DraftCaches]) -> BuildContext:
    """Return the context with the parts of target and draft models that the method uses."""
    from speculant.engines.hf.caches.sparse_cache import whole_cache_reason
    from speculant.engines.hf.probe.class_checks import optional_layers
    from speculant.engines.hf.views.layer_parts import whole_layers_reason

    return replace(
        context,
        open_cache=None if not drafts else drafts if len(drafts) > 1 else drafts[0],
        translation=drafts[0].pair.translation if drafts else None,
        layers=optional_layers(model) if method.takes_layers else 0,
        whole_layers=whole_layers_reason(model) if method.takes_sublayers else "",
        whole_cache=whole_cache_reason(model) if method.takes_rows else "",
    )
