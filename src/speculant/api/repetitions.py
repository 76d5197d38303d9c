r"""How often a regular expression repeats its parts: counted repetitions inside counted ones multiply.

llguidance limits the work of compiling and matching, but not that of one step in `(a{1000}){1000}`: that takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

COUNT = re.compile(r"\{(\d{0,9}),?(\d{0,9})\}")


def max_repeats(pattern: str) -> int:
    """Return the largest product of counts `{m,n}` along nested groups; 1 where nothing is counted.

    Also for grammars, in which patterns stand among other text: what looks like a group there is taken for one.
    """
    within = [1]  # of each open group
    place, last = 0, 1  # last: of the part before this place
    while place < len(pattern):
        symbol, step = pattern[place], 1
        counted = COUNT.match(pattern, place) if symbol == "{" else None
        if counted is not None:
            last *= max([1, *(int(each) for each in counted.groups() if each)])
            step = len(counted[0])
        elif symbol == ")" and len(within) > 1:
            last = within.pop()
        else:
            last = 1
            if symbol == "(":
                within.append(1)
            elif symbol == "\\":
                step = 2
            elif symbol == "[":
                step = class_end(pattern, place) - place
        within[-1] = max(within[-1], last)
        place += step
    return max(within)


def patterns_of(schema: Any) -> Iterator[str]:
    """Yield the regular expressions of a JSON schema: `pattern`, and the keys of `patternProperties`."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(pattern := part.get("pattern"), str):
                yield pattern
            if isinstance(keys := part.get("patternProperties"), dict):
                yield from keys
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def class_end(pattern: str, start: int) -> int:
    """Return the place behind a character class that begins at `start`; behind its bracket where it never ends."""
    place = start + 1 + pattern.startswith("^", start + 1)
    place += pattern.startswith("]", place)
    while place < len(pattern) and pattern[place] != "]":
        place += 2 if pattern[place] == "\\" else 1
    return place + 1 if place < len(pattern) else start + 1
