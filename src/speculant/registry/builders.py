"""Builders construct drafters from a build context; one function per group of constructors with the same signature.

A builder receives the drafter's class, which the method's row names, and the context, whose settings are an instance of
the method's settings class, or None. It passes on the arguments that the constructor takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # numpy would make `speculant --help` wait
    from speculant.core.drafter import Drafter
    from speculant.registry.context import BuildContext

Builder: TypeAlias = "Callable[[Callable[..., Drafter], BuildContext], Drafter]"


def build_plain(kind: Callable[..., Drafter], _context: BuildContext) -> Drafter:
    """Build a drafter that takes no arguments."""
    return kind()


def build_by_settings(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that takes only its settings."""
    return kind(settings=context.settings)


def build_by_vocabulary(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that needs the number of token ids, for guesses or to index a text."""
    return kind(vocabulary=context.vocabulary, settings=context.settings)


def build_memory(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that learns from text."""
    return kind(**_memory_arguments(context))


def build_matching(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a suffix-automaton drafter, combined with another method if the settings name one."""
    matching: Any = build_memory(kind, context)
    if context.settings is None or not context.settings.auxiliary or context.build_auxiliary is None:
        drafter: Drafter = matching
        return drafter
    from speculant.drafters.suffix.switching import SwitchingDrafter  # imported here because it needs numpy

    auxiliary = context.build_auxiliary(context.settings.auxiliary)
    return SwitchingDrafter(matching, auxiliary, context.settings.threshold)


def build_memory_on_bases(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that learns from text, on frozen bases."""
    return kind(**_memory_arguments(context), bases=context.bases)


def build_draft_model(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs one or more draft models."""
    return kind(context.open_cache, vocabulary=context.vocabulary, settings=context.settings)


def build_draft_chain(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs a draft model, and whose tokens are drawn or chosen as the acceptance rule demands."""
    return kind(context.open_cache, vocabulary=context.vocabulary, settings=context.settings, sampled=context.sampled)


def build_bare_draft_model(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs a draft model and has no settings."""
    return kind(context.open_cache, vocabulary=context.vocabulary)


def build_translated_draft_model(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that exchanges text with its draft model."""
    return kind(context.open_cache, translation=context.translation, settings=context.settings)


def build_cascade(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter whose draft model itself decodes with drafts of another method."""
    return kind(context.open_cache, context.build_inner, vocabulary=context.vocabulary, settings=context.settings)


def build_draft_model_and_memory(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that combines a memory on frozen bases with a draft model."""
    return kind(context.open_cache, **_memory_arguments(context), bases=context.bases)


def build_layers(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs some layers of the target."""
    return kind(layers=context.layers, settings=context.settings)


def build_sublayers(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs some layers or sublayers of the target."""
    return kind(layers=context.layers, whole_layers=context.whole_layers, settings=context.settings)


def build_layer_search(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that searches which layers or sublayers of the target to run, and can save the search."""
    return kind(
        layers=context.layers,
        tokenizer=context.tokenizer,
        whole_layers=context.whole_layers,
        settings=context.settings,
    )


def build_rows(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs the target on some rows of its cache."""
    return kind(whole_cache=context.whole_cache, settings=context.settings)


def build_head(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that runs a trained head."""
    return kind(context.head, settings=context.settings, sampled=context.sampled)


def build_head_and_memory(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that combines a memory with a trained head."""
    return kind(context.head, **_memory_arguments(context))


def build_head_and_memory_on_bases(kind: Callable[..., Drafter], context: BuildContext) -> Drafter:
    """Build a drafter that combines a memory on frozen bases with a trained head."""
    return kind(context.head, **_memory_arguments(context), bases=context.bases)


def _memory_arguments(context: BuildContext) -> dict[str, Any]:
    return {
        "vocabulary": context.vocabulary,
        "tokenizer": context.tokenizer,
        "memory_limit": context.memory_limit,
        "settings": context.settings,
    }
