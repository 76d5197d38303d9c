"""The layers and sublayers of the target that draft, and the settings that name them.

Layers are counted from 0. At least one sublayer is run and at least one is skipped.
"""

from __future__ import annotations

import re

from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.sublayers import Sublayers

_EXAMPLE = "3,5-8, or attention 1,3; mlp 1-5"
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def check_layers(count: int) -> int:
    """Return the number of decoder layers of the target, if some can be left out.

    Raises:
        UnsupportedError: there is only one, or none can be left out.
    """
    if not count:
        raise UnsupportedError(
            "decoder layers of this model cannot be left out: they were not found, or the model takes no explicit "
            "attention masks. Use a method that runs all layers, such as 'mix'."
        )
    if count == 1:
        raise UnsupportedError("the model has one decoder layer, so none can be left out; use 'mix'.")
    return count


def first_layers(count: int, number: int, *, name: str) -> Sublayers:
    """Return the first layers of the target.

    Args:
        count: number of layers of the target.
        number: number of layers to return.
        name: name of the setting, for the error message.

    Raises:
        UsageError: the number is 0, or includes all layers.
    """
    if not 1 <= number < count:
        raise UsageError(
            f"{name} must be {_range(1, count - 1)} for this model, which has {count} layers, not {number}."
        )
    return Sublayers.whole(range(number))


def every_other(count: int) -> Sublayers:
    """Return every other layer between the first and the last; the last layer if there is none in between."""
    return Sublayers.whole(tuple(range(1, count - 1, 2)) or (count - 1,))


def without(skipped: Sublayers, count: int) -> Sublayers:
    """Return the other sublayers of the target."""
    return Sublayers.whole(range(count)).without(skipped)


def parse_skipped(text: str, count: int, *, whole: str = "") -> Sublayers:
    """Return the sublayers named by a setting, or `every_other` layer if it is empty.

    The setting is a list of layers, such as 3,5-8, or lists that follow "attention" and "mlp", separated by semicolons.

    Args:
        text: the setting.
        count: number of layers of the target.
        whole: the reason why only whole layers can be skipped; "" if attention and MLP can be skipped separately.

    Raises:
        UnsupportedError: it names sublayers, but only whole layers can be skipped.
        UsageError: it names unknown layers, one of them twice, or all of them.
    """
    if not str(text).strip():
        return every_other(count)
    found: dict[str, set[int]] = {"attention": set(), "mlp": set()}
    for group in str(text).split(";"):
        name, _, indices = group.strip().partition(" ")
        parts = (name,) if name in found else ("attention", "mlp")
        for index in _parse_indices(indices if name in found else group, text, count):
            for part in parts:
                if index in found[part]:
                    raise UsageError(f"skipped={text} names {part if len(parts) == 1 else 'layer'} {index} twice.")
                found[part].add(index)
    skipped = Sublayers(tuple(sorted(found["attention"])), tuple(sorted(found["mlp"])))
    if whole and not skipped.are_whole:
        raise UnsupportedError(
            f"attention and MLP of this model's layers cannot be skipped separately: {whole}. Name whole layers, as "
            "in skipped=3,5-8."
        )
    if skipped == Sublayers.whole(range(count)):
        raise UsageError(f"skipped={text} leaves no layer to draft with; the model has {count}.")
    return skipped


def format_skipped(skipped: Sublayers) -> str:
    """Return the setting from which `parse_skipped` reads these sublayers."""
    if skipped.are_whole:
        return _format_indices(skipped.mlp)
    named = (("attention", skipped.attention), ("mlp", skipped.mlp))
    return "; ".join(f"{name} {_format_indices(indices)}" for name, indices in named if indices)


def _parse_indices(given: str, text: str, count: int) -> list[int]:
    found = list[int]()
    for each in given.split(","):
        match = _RANGE.fullmatch(each.strip())
        if match is None:
            wrong = each.strip()
            if wrong.lstrip("-").isdigit():
                raise UsageError(f"there is no layer {wrong} to skip; the model has {count}, counted from 0.")
            raise UsageError(f"skipped layers must be numbers, as in {_EXAMPLE}, not {text!r}.")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last:
            raise UsageError(f"skipped={text} has a range that falls, {each.strip()}; write {last}-{first}.")
        if last >= count:
            raise UsageError(f"there is no layer {last} to skip; the model has {count}, counted from 0.")
        found += range(first, last + 1)
    return found


def _format_indices(indices: tuple[int, ...]) -> str:
    """Format ascending indices, with three or more consecutive ones as a range."""
    runs = list[list[int]]()
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return ",".join(texts)


def _range(minimum: int, maximum: int) -> str:
    return str(minimum) if minimum == maximum else f"from {minimum} to {maximum}"
