"""Options as data: what is derived from a field, and that keywords and fields are the same."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from speculant.core.errors import UsageError
from speculant.options import kinds
from speculant.options.drafting import DraftingKeywords, DraftingOptions
from speculant.options.model import ModelOptions
from speculant.options.option import REQUIRED, option, options_of, read_values, reuse
from speculant.options.sampling import SamplingOptions
from speculant.options.serving import ServingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Options of a test."""

    out: str = option(REQUIRED, "where", kinds.name())
    max_rows: int = option(4, "rows at once", kinds.whole(1))
    names: tuple[str, ...] = option((), "names", kinds.name(), flag="--name", several=True)
    plain: int = 3

    def __post_init__(self) -> None:
        read_values(self)


def test_what_is_derived() -> None:
    """Guards flags, defaults and help, which every front end shows."""
    found = options_of(Group)
    assert [each.flag for each in found.values()] == ["--out", "--max-rows", "--name"]
    assert found["out"].required
    assert found["max_rows"].described == "rows at once; default: 4"
    assert found["names"].read("a, b") == found["names"].read(["a", "b"]) == ("a", "b")


def test_values_are_read() -> None:
    """Guards values given in Python: they are checked as those of the command line are."""
    assert Group(out="o", max_rows="7").max_rows == 7  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="max_rows must be 1 or more, not 0"):
        Group(out="o", max_rows=0)


def test_an_option_of_another_group() -> None:
    """Guards options that two groups share: they differ in what is named alone."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Other:
        max_rows: int = reuse(Group, "max_rows", default=8, help="other rows")

    [own] = options_of(Other).values()
    assert (own.default, own.help, own.kind) == (8, "other rows", options_of(Group)["max_rows"].kind)


def test_keywords_are_the_fields() -> None:
    """Guards the keywords of `Speculator`, which type checkers read from a TypedDict."""
    loaded_by_name = {"draft_dtype", "draft_device"}  # of draft models that commands load
    assert set(DraftingKeywords.__annotations__) == {each.name for each in fields(DraftingOptions)} - loaded_by_name


@pytest.mark.parametrize("group", [ModelOptions, DraftingOptions, SamplingOptions, ServingOptions])
def test_every_field_is_described(group: type) -> None:
    """Guards options without a word in the docstring or in help."""
    for name, each in options_of(group).items():
        assert each.help
        assert name in (group.__doc__ or "")
