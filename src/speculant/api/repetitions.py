r"""Counts how often a regular expression repeats its parts: nested counted repetitions multiply.

llguidance limits the work of compiling and matching, but not that of one step: `(a{1000}){1000}` takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

COUNT = re.compile(r"\{(\d{0,9}),?(\d{0,9})\}")


def max_repeats(pattern: str) -> int:
    """Return the maximum product of counts `{m,n}` along nested groups; 1 without counts.

    Also works on grammars, in which patterns appear among other text: anything that looks like a group is taken for
    one.
    """
    within = [1]  # by open group
    place, last = 0, 1  # last: count of the previous part
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
    """Yield the regular expressions in a JSON schema: `pattern`, and the keys of `patternProperties`."""
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
    """Return the index after a character class that starts at `start`; after its bracket if it is not closed."""
    place = start + 1 + pattern.startswith("^", start + 1)
    place += pattern.startswith("]", place)
    while place < len(pattern) and pattern[place] != "]":
        place += 2 if pattern[place] == "\\" else 1
    return place + 1 if place < len(pattern) else start + 1
