"""Builders: how the drafters of a family are constructed from a build context, one function per family.

A builder is given the drafter's class, which the row of a method names, and the context, whose settings are those of
the method's settings class, or None. It passes on what classes of the family take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # numpy would make `speculant --help` wait
    from speculant.core.drafter import Drafter
    from speculant.registry.context import BuildContext

Builder: TypeAlias = "Callable[[Callable[..., Drafter], BuildContext], Drafter]"


def build_plain(kind: Callable[..., Drafter], _context: BuildContext) -> Drafter:
    """Build a drafter that needs nothing."""
    return kind()


def build_by_settings(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that needs its settings alone."""
    return kind(settings=context.settings)


def build_by_vocabulary(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that fills places with any token of the vocabulary."""
    return kind(vocabulary=context.vocabulary, settings=context.settings)


def build_memory(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that learns from text."""
    return kind(**_memory_arguments(context))


def build_matching(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build suffix automata, beside another method where the settings name one."""
    matching: Any = build_memory(kind, context)
    if context.settings is None or not context.settings.auxiliary or context.build_auxiliary is None:
        drafter: Drafter = matching
        return drafter
    from speculant.drafters.suffix.switching import SwitchingDrafter  # here: it takes numpy

    auxiliary = context.build_auxiliary(context.settings.auxiliary)
    return SwitchingDrafter(matching, auxiliary, context.settings.threshold)


def build_memory_on_bases(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that learns from text, on frozen bases."""
    return kind(**_memory_arguments(context), bases=context.bases)


def build_draft_model(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs a draft model, or several."""
    return kind(context.open_cache, vocabulary=context.vocabulary, settings=context.settings)


def build_bare_draft_model(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs a draft model and has no settings."""
    return kind(context.open_cache, vocabulary=context.vocabulary)


def build_translated_draft_model(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that exchanges text with its draft model."""
    return kind(context.open_cache, translation=context.translation, settings=context.settings)


def build_cascade(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter whose draft model is drafted for by another method."""
    return kind(context.open_cache, context.build_inner, vocabulary=context.vocabulary, settings=context.settings)


def build_draft_model_and_memory(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that unites a memory on frozen bases with a draft model."""
    return kind(context.open_cache, **_memory_arguments(context), bases=context.bases)


def build_layers(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs some layers of the target."""
    return kind(layers=context.layers, settings=context.settings)


def build_layer_search(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that searches the layers of the target to run, and keeps the search."""
    return kind(layers=context.layers, tokenizer=context.tokenizer, settings=context.settings)


def build_rows(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs the target on some rows of its cache."""
    return kind(whole_cache=context.whole_cache, settings=context.settings)


def build_head(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs a trained head."""
    return kind(context.head, settings=context.settings, sampled=context.sampled)


def build_head_and_memory(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that unites a memory with a trained head."""
    return kind(context.head, **_memory_arguments(context))


def build_head_and_memory_on_bases(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that unites a memory on frozen bases with a trained head."""
    return kind(context.head, **_memory_arguments(context), bases=context.bases)


def _memory_arguments(context: BuildContext) -> dict[str, Any]:
    return {
        "vocabulary": context.vocabulary,
        "tokenizer": context.tokenizer,
        "memory_limit": context.memory_limit,
        "settings": context.settings,
    }
