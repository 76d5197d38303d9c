"""The size of ambiguous sequences, by which patterns are refused whose matching takes seconds a token."""

from __future__ import annotations

import pytest

from speculant.api.constraints import Constraint
from speculant.api.open_parts import MANY, open_parts, open_parts_of_grammar
from speculant.core.errors import UsageError


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("abc[?*]\\+", 0),
        ("a?b*c+", 3),
        ("a|b|c", 1),
        ("(a|aa){2000}", 2000),
        ("((a|aa)+){30}", 60),
        ("(a?b?|c?)d?", 4),
        (r"(?:\d{4}-\d{2}|x){10}", 10),
        ("[a-z]{1,5000}", 201),
        ("([a-z]{1,5}){10}", 10),
        ("(a?){2,4}", 5),
        ("(((", 0),
        (")){3}?", 1),
    ],
)
def test_open_parts_multiply(pattern: str, parts: int) -> None:
    """Guards the scan: groups, alternatives, escapes and classes, and text that is no valid pattern."""
    assert open_parts(pattern) == parts


@pytest.mark.parametrize(
    ("lark", "parts"),
    [
        ('start: A b\nA: /x?/ "y"\nb: A*', 1),
        ('start: NAME ("," NAME)*\nNAME: /[a-z]+/ ("-" /[a-z]+/)? ~ 3..5', 12),
        ("start: T0\nT0: T1 T1\nT1: T2 T2\nT2: /a|aa/", 4),
        ('start: A\nA: "x" B\nB: A', MANY),
        ('start: %json {"type": "string", "pattern": "(a|aa){90}"}', 90),
        ("".join(f"T{i}: T{i + 1}\n" for i in range(3000)) + 'T3000: ["a"] // "b?"', 1),
    ],
)
def test_terminals_include_each_other(lark: str, parts: int) -> None:
    """Guards grammars, in which a terminal can double another one as often as there are lines."""
    assert open_parts_of_grammar(lark) == parts


@pytest.mark.parametrize(
    "constraint",
    [
        lambda: Constraint.regex("(a|aa){2000}"),
        lambda: Constraint.regex("(a|aa)+" * 3000),
        lambda: Constraint.regex("(a{1,100}){90}" * 2),
        lambda: Constraint.json_schema({"type": "string", "pattern": "^" + "a?" * 1600 + "$"}),
        lambda: Constraint.grammar("".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(12)) + "T12: /a|aa/"),
    ],
)
def test_explosive_constraints_are_refused(constraint: object) -> None:
    """Guards servers: each of these takes seconds for its first token."""
    with pytest.raises(UsageError, match="ambiguous"):
        constraint()  # type: ignore[operator]


def test_common_constraints_are_taken() -> None:
    """Guards against limits that refuse what people write."""
    Constraint.regex("|".join(f"choice {number}" for number in range(1000)))
    Constraint.regex(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(Z|[+-]\d{2}:\d{2})\n){300}")
    Constraint.regex(r"([a-z]+(\.[a-z]+)*@[a-z]+\.(com|org|net),){50}")
    Constraint.regex(".{0,10000}")
    name = {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]{0,63}$"}
    Constraint.json_schema({"type": "object", "properties": {f"p{number}": name for number in range(100)}})


def test_half_characters_are_refused() -> None:
    """Guards JSON's escapes of surrogates, which no UTF-8 holds."""
    with pytest.raises(UsageError, match="surrogate"):
        Constraint.regex("\ud800")
