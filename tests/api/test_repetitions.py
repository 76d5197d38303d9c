"""The size of counted repetitions, by which explosive patterns are refused before they are compiled."""

from __future__ import annotations

import pytest

from speculant.api.repetitions import max_repeats, patterns_of


@pytest.mark.parametrize(
    ("pattern", "repeats"),
    [
        ("abc", 1),
        ("a{5}b{7}", 7),
        ("(a{10}b){20}", 200),
        ("((a{2,10}){3}|b{9}){4,}", 120),
        ("a{10}{10}", 100),
        (r"\(a{3}\){4}", 4),
        ("[(]{3}[^]{9}]{2}", 3),
        ("[a{5}", 5),
        ("(a{1000}){1000}", 1_000_000),
        ("{,}", 1),
        (")){3}", 3),
    ],
)
def test_counts_multiply_along_nested_groups(pattern: str, repeats: int) -> None:
    """Guards the scan: groups, escapes and classes, and text that is no valid pattern."""
    assert max_repeats(pattern) == repeats


def test_patterns_of_a_schema() -> None:
    """Guards schemas, however deep their patterns are."""
    schema = {"items": [{"pattern": "a"}], "properties": {"pattern": {"patternProperties": {"b": {"pattern": "c"}}}}}
    assert sorted(patterns_of(schema)) == ["a", "b", "c"]
