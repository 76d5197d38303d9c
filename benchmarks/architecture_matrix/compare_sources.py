"""What drafted decoding gives behind media or an encoder's source, compared with `model.generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from architecture_matrix.compare import ATTENTIONS, GREEDY, SAMPLED, Found, Guesses, chains_reason, summed
from architecture_matrix.media_families import LEFT_OUT
from architecture_matrix.sources import build_with_source, source_class
from speculant.api.speculator import Speculator
from speculant.core.errors import UnsupportedError, UsageError
from speculant.engines.hf.probe.tiny import quiet

_PLAIN = ": decoded plainly, without drafts."  # how a note on what keeps a prompt from drafts ends
_NEW = 26  # tokens of a text: beyond the windows of tiny models


def examine_with_source(group: str, name: str, attentions: Sequence[str] = ATTENTIONS) -> Found:
    """Return what an architecture can do behind a source, and how its drafted texts compare with plain ones.

    Args:
        group: of `sources.GROUPS`.
        name: the model type.
        attentions: which are tried, one after the other.
    """
    found = Found(name=name, kind=source_class(group, name))
    if name in LEFT_OUT:
        found.reason = f"It {LEFT_OUT[name]}"
        return found
    best = []
    for attention in attentions:
        try:
            model, inputs = build_with_source(group, name, attention)
        except Exception as error:  # a class without this attention, or one that needs what is not installed
            reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]:.160}"
            best.append(("not built", reason))
            continue
        with quiet():
            best.append(_compare(model, inputs, attention, found))
    return summed(found, attentions, best)


def _compare(model: Any, inputs: Mapping[str, Any], attention: str, found: Found) -> tuple[str, str]:
    """Add comparisons with one attention; return the verdict and its reason."""
    try:
        greedy = _write(model, inputs, GREEDY)
    except Exception as error:
        return (
            "not built",
            f"Its own `generate` fails at these sizes: {type(error).__name__}: {str(error).strip():.120}",
        )
    try:
        speculator = Speculator.from_transformers(model, method="none", nodes=12, fast=False)
    except (UsageError, UnsupportedError) as error:  # it writes no text
        return "not built", str(error)
    reason = ""
    for label, options in (("greedy", GREEDY), ("sampled", SAMPLED)):
        place = f"{attention}, {label}"
        try:
            plain = greedy if options is GREEDY else _write(model, inputs, options)
            speculator.drafter = Guesses({}, plain[-_NEW:])
            ours = _write(model, inputs, options | {"custom_generate": speculator})
        except Exception as error:
            found.mismatches.append(f"{place}: {type(error).__name__}: {str(error).strip():.200}")
            continue
        found.comparisons += 1
        if (stats := speculator.last_stats) is not None:
            found.accepted += stats.accepted
            reason = next((note.removesuffix(_PLAIN) for note in stats.notes if note.endswith(_PLAIN)), reason)
        if ours != plain:
            first = next((i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b), len(ours))
            found.mismatches.append(f"{place}: from token {first} on")
    capabilities = speculator.engine.capabilities
    if reason := capabilities.refusal or reason:
        return "plain", reason
    return ("trees", "") if capabilities.trees else ("chains", chains_reason(speculator))


def _write(model: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> list[int]:
    """Return what `model.generate` returns, with a fixed seed."""
    torch.manual_seed(1)
    text = model.generate(**inputs, max_new_tokens=_NEW, num_beams=1, **options)
    ids: list[int] = getattr(text, "sequences", text)[0].tolist()
    return ids
