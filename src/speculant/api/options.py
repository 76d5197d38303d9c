"""Checks of user options: each returns a normalised value or raises an error that says what to pass."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from speculant.core.errors import UsageError
from speculant.options.drafting import DraftingKeywords, DraftingOptions

AUTO = "auto"
MAX_BIAS = 100


def check_model_object(model: Any, tokenizer: Any) -> None:
    """Refuse objects that are not a loaded model, and swapped model and tokenizer."""
    if isinstance(model, str):
        raise UsageError(
            f"the model is the text {model!r}. Load it first, or use Speculator.from_pretrained({model!r})."
        )
    if not hasattr(model, "config") and hasattr(tokenizer, "config"):
        raise UsageError("the model comes first and the tokenizer second; these are swapped.")
    if not (hasattr(model, "config") and hasattr(model, "generate")):
        raise UsageError(
            f"the model must be a loaded transformers model, not {type(model).__name__}. "
            "Load one with AutoModelForCausalLM, or use Speculator.from_pretrained."
        )
    check_tokenizer(tokenizer)


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse objects that are not a tokenizer; None is allowed."""
    if tokenizer is not None and not (hasattr(tokenizer, "decode") and callable(tokenizer)):
        raise UsageError(f"the tokenizer must be a loaded transformers tokenizer, not {type(tokenizer).__name__}.")


def check_alone(others: Mapping[str, Any]) -> None:
    """Refuse options (by name) that configure a drafter when a finished drafter is given; None means not given."""
    given = [name for name, value in others.items() if value is not None and value is not False]
    if given:
        raise UsageError(
            f"drafter= is used as it is, so {' and '.join(given)} would be ignored; leave out one or the other."
        )


def check_nodes(nodes: Any) -> int | str | None:
    """Check a number of nodes: an integer, "auto" or None."""
    whole = isinstance(nodes, int) and not isinstance(nodes, bool) and nodes >= 0
    if not (nodes is None or nodes == AUTO or whole):
        raise UsageError(f"nodes must be 0 or more, or '{AUTO}', not {nodes!r}.")
    return nodes  # type: ignore[no-any-return]


def check_number(
    name: str, value: Any, *, minimum: float, maximum: float = math.inf, above: bool = False, whole: bool = False
) -> None:
    """Refuse an option that is not a finite number from `minimum` (or above it) to `maximum`; None is allowed."""
    if value is None:
        return
    kind = "a whole number" if whole else "a number"
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    inside = right and math.isfinite(value) and (value > minimum if above else value >= minimum) and value <= maximum
    if not inside:
        bounds = f"{'above' if above else 'of at least'} {minimum:g}"
        bounds += f" and at most {maximum:g}" if maximum < math.inf else ""
        raise UsageError(f"{name} must be {kind} {bounds}, not {value!r}.")


def check_logit_bias(bias: Any, vocabulary: int) -> dict[int, float]:
    """Return the logit bias of tokens, -100 to 100 each; None gives an empty dict."""
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise UsageError(f"logit_bias must be a dict from token ids to numbers, not {bias!r:.60}.")
    for token, value in bias.items():
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise UsageError(f"logit_bias must name token ids below {vocabulary}, not {token!r:.60}.")
        check_number(
            f"logit_bias of token {token}", math.nan if value is None else value, minimum=-MAX_BIAS, maximum=MAX_BIAS
        )
    return dict(bias)


def check_stop(stop: Any) -> list[str]:
    """Return stop strings as a list; None gives an empty list."""
    if stop is None:
        return []
    strings = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Iterable) else [stop]
    if not all(isinstance(each, str) and each for each in strings):
        raise UsageError(f"stop must be a non-empty text or a list of them, not {stop!r}. Leave it out for none.")
    return strings


def unknown_option(
    name: str, known: Iterable[str], *, see: str = "help(Speculator.stream) and transformers' GenerationConfig"
) -> UsageError:
    """Return the error for an unknown option, suggesting the most similar known one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"Did you mean `{near[0]}`?" if near else f"See {see}."
    return UsageError(f"there is no option `{name}`. {hint}")


def make_drafting_options(given: DraftingKeywords) -> DraftingOptions:
    """Return drafting options.

    Raises:
        UsageError: there is no option of that name.
    """
    known = {field.name for field in fields(DraftingOptions)}
    for name in given:
        if name not in known:
            raise unknown_option(name, known, see="help(Speculator.from_transformers)")
    return DraftingOptions(**given)
