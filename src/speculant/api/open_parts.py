r"""Counts consecutive pattern parts with open ends: `x*`, `x?`, `(a|aa)`; repeated ones are multiplied.

The position of a text in a sequence of such parts is ambiguous, and llguidance follows all possibilities in one step,
whose work its limits do not count: the first token of `(a|aa){2000}` takes six seconds, that of `((a|aa)+){3000}`
thirteen. Alternatives at the same place are cheap, as is one counted character, `[a-z]{1,5000}`, unless many of them
follow each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from speculant.api.repetitions import COUNT, class_end

MANY = 1 << 30  # means unbounded, such as a terminal that contains itself
_LARK = re.compile(
    r"""//[^\n]* | "(?:\\.|[^"\\\n])*" | /(?:\\.|[^/\\\n])+/ | [A-Za-z_]\w* | \{\s*\d*\s*,?\s*\d*\s*\} """
    r"""| ~\s*\d+(?:\s*\.\.\s*\d+)? | [()|?*+\[\]]""",
    re.VERBOSE,
)
_DEFINITION = re.compile(r"^[ \t]*([?!]?[A-Za-z_]\w*)[^:\n]*:", re.MULTILINE)
Item = tuple[str, int]  # the symbol, and a count: of a part's own open parts, or of its repetitions
CLOSED, RANGE = "{", "{,"  # repetitions by one count, and by two
CHEAP = 25  # this many counted single characters cost as much as one open part


def open_parts(pattern: str) -> int:
    """Return the maximum number of open parts in sequence in a regular expression."""
    return _longest(_regex_items(pattern))


def open_parts_of_grammar(lark: str) -> int:
    """Return the maximum number of open parts in sequence in any terminal of a Lark grammar.

    Rules are not counted: llguidance limits its parser's work. Their quoted parts are, since these may be patterns.
    """
    places = [*_DEFINITION.finditer(lark)]
    ends = [*(place.start() for place in places[1:]), len(lark)] if places else []
    bodies = {place[1].lstrip("?!"): lark[place.end() : end] for place, end in zip(places, ends, strict=True)}
    terminals = {name: body for name, body in bodies.items() if name.isupper()}
    known = _terminals(terminals)
    quoted = [each[0][1:-1] for each in _LARK.finditer(lark) if each[0][0] in '"/' and not each[0].startswith("//")]
    return max([0, *known.values(), *map(open_parts, quoted)])


def _terminals(bodies: Mapping[str, str]) -> dict[str, int]:
    """Return the number of open parts of each terminal, including the terminals that it refers to."""
    waits = {name: _names(body) & bodies.keys() for name, body in bodies.items()}
    users = dict[str, list[str]]((name, []) for name in bodies)
    for name, used in waits.items():
        for each in used:
            users[each].append(name)
    ready, known = [name for name, used in waits.items() if not used], dict[str, int]()
    while ready:
        name = ready.pop()
        known[name] = _longest(_lark_items(bodies[name], known))
        for user in users[name]:
            waits[user].discard(name)
            if not waits[user]:
                ready.append(user)
    return dict.fromkeys(bodies, MANY) | known  # the remaining ones contain themselves


def _longest(items: Iterable[Item]) -> int:
    """Return the number of open parts on the longest way through a pattern."""
    # For each open group: its longest branch, this branch, whether there are several.
    best, here, several = [0], [0], [False]
    last = 0  # count of the previous part, which a repetition may multiply
    for kind, count in items:
        if kind == "?":
            last += 1
        elif kind in (CLOSED, RANGE):
            last = min(MANY, last * count + (kind == RANGE) * (1 if last else 1 + count // CHEAP))
        else:
            here[-1] = min(MANY, here[-1] + last)
            last = count
            if kind == "(":
                best.append(0)
                here.append(0)
                several.append(False)
            elif kind == "|" or (kind == ")" and len(here) > 1):
                best[-1] = max(best[-1], here[-1])
                here[-1] = 0
                several[-1] |= kind == "|"
                if kind == ")":
                    last = best.pop() + several.pop()
                    here.pop()
    while here:
        last = max(best.pop(), here.pop() + last) + several.pop()
    return last


def _regex_items(pattern: str) -> Iterator[Item]:
    place = 0
    while place < len(pattern):
        symbol, step = pattern[place], 1
        counted = COUNT.match(pattern, place) if symbol == "{" else None
        if counted is not None:
            step = len(counted[0])
            yield RANGE if "," in counted[0] else CLOSED, max([1, *(int(each) for each in counted.groups() if each)])
        elif symbol in "?*+":
            yield "?", 0
        elif symbol in "()|":
            yield symbol, 0
            step += symbol == "(" and pattern.startswith("?", place + 1)  # for flags and unnumbered groups
        else:
            step = 2 if symbol == "\\" else class_end(pattern, place) - place if symbol == "[" else 1
            yield "", 0
        place += step


def _lark_items(body: str, known: Mapping[str, int]) -> Iterator[Item]:
    for found in _LARK.finditer(body):
        text = found[0]
        if text.startswith("//"):
            continue
        if text[0] == "/":
            yield "", open_parts(text[1:-1])
        elif text[0] in "{~":
            counts = [int(each) for each in re.findall(r"\d{1,9}", text)]
            yield RANGE if "," in text or ".." in text else CLOSED, max([1, *counts])
        elif text in "?*+":
            yield "?", 0
        elif text == "[":
            yield "(", 0
        elif text == "]":
            yield ")", 0
            yield "?", 0
        elif text in "()|":
            yield text, 0
        else:
            yield "", known.get(text, 0)


def _names(body: str) -> set[str]:
    return {found[0] for found in _LARK.finditer(body) if found[0][0].isalpha() or found[0][0] == "_"}
