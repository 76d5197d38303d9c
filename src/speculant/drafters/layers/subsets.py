"""Which decoder layers of the target draft, and the checks of settings that name them.

Layers are counted from 0. At least one is run and at least one is left out.
"""

from __future__ import annotations

from speculant.core.errors import UnsupportedError, UsageError

Layers = tuple[int, ...]


def check_layers(count: int) -> int:
    """Return the number of decoder layers of the target, if some can be left out.

    Raises:
        UnsupportedError: there is one, or they cannot.
    """
    if not count:
        raise UnsupportedError(
            "decoder layers of this model cannot be left out: they were not found, or the model takes no explicit "
            "attention masks. Use a method that runs all layers, such as 'mix'."
        )
    if count == 1:
        raise UnsupportedError("the model has one decoder layer, so none can be left out; use 'mix'.")
    return count


def first_layers(count: int, number: int, *, name: str) -> Layers:
    """Return the first layers of the target.

    Args:
        count: how many the target has.
        number: how many are wanted.
        name: of the setting, for the message.

    Raises:
        UsageError: that is none of them, or all.
    """
    if not 1 <= number < count:
        raise UsageError(
            f"{name} must be {_range(1, count - 1)} for this model, which has {count} layers, not {number}."
        )
    return tuple(range(number))


def every_other(count: int) -> Layers:
    """Return every other layer between the first and the last; the last, if there is none between."""
    return tuple(range(1, count - 1, 2)) or (count - 1,)


def parse_skipped(text: str, count: int) -> Layers:
    """Return the layers that a setting such as 3,5,8 names; `every_other` if it is empty.

    Raises:
        UsageError: it names no layers of the target, one of them twice, or all of them.
    """
    if not str(text).strip():
        return every_other(count)
    try:
        skipped = [int(each) for each in str(text).split(",")]
    except ValueError as error:
        raise UsageError(f"skipped layers must be numbers, as in 3,5,8, not {text!r}.") from error
    for index in skipped:
        if not 0 <= index < count:
            raise UsageError(f"there is no layer {index} to skip; the model has {count}, counted from 0.")
    if len(set(skipped)) < len(skipped):
        raise UsageError(f"skipped={text} names a layer twice.")
    if len(skipped) == count:
        raise UsageError(f"skipped={text} leaves no layer to draft with; the model has {count}.")
    return tuple(sorted(skipped))


def without(skipped: Layers, count: int) -> Layers:
    """Return the other layers of the target, in order."""
    return tuple(index for index in range(count) if index not in skipped)


def _range(minimum: int, maximum: int) -> str:
    return str(minimum) if minimum == maximum else f"from {minimum} to {maximum}"
