"""Names of losses: the divergences, and weighted sums of them such as "kl + 0.1 ce"."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from speculant.core.errors import UsageError

NAMES = ("ce", "kl", "rkl", "jsd", "tvd", "top")  # see `training.losses`
_TERM = re.compile(r"(?P<weight>\d*\.?\d+(?:e-?\d+)?)?\*?(?P<name>[a-z]+)(?:\((?P<option>[^()]*)\))?")


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a loss: its weight, the divergence's name, and the number in parentheses or None."""

    weight: float
    name: str
    number: float | None


def parse_terms(text: str) -> tuple[Term, ...]:
    """Parse a text such as "kl", "kl + 0.1 ce" or "jsd(0.3)" into terms.

    Raises:
        UsageError: it is not a valid loss; the message says what is accepted.
    """
    return tuple(_parse_term(text, term) for term in text.replace(" ", "").split("+"))


def _parse_term(text: str, term: str) -> Term:
    match = _TERM.fullmatch(term)
    if match is None or match["name"] not in NAMES:
        near = difflib.get_close_matches(match["name"], NAMES, n=1) if match else []
        raise UsageError(
            f"there is no loss {text!r}; a loss is one of {', '.join(NAMES)}, or a weighted sum as in kl+0.1ce."
            + (f" Did you mean {near[0]}?" if near else "")
        )
    weight, name, number = float(match["weight"] or 1), match["name"], None
    if match["option"] is not None:
        try:
            number = float(match["option"])
        except ValueError:
            number = -1.0
        if not ((name == "jsd" and 0 < number < 1) or (name == "top" and number >= 1 and number.is_integer())):
            raise UsageError(
                f"the loss {term!r} cannot be read: jsd takes a share between 0 and 1, top a whole number."
            )
    return Term(weight, name, number)
