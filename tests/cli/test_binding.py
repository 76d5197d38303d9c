"""Commands made of groups of options: flags, arguments, repeated values, and what was given."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

import speculant.cli
from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.cli.corpus_settings import CorpusKind
from speculant.core.errors import UsageError
from speculant.options import kinds
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions

MAX_PARAMETERS = 10


def call(function: Any, *argv: str) -> None:
    """Run a command as typer does."""
    app = typer.Typer()
    app.command(cls=Command)(bind(function))
    command: Any = typer.main.get_command(app)
    with command.make_context("test", list(argv)) as context:
        command.invoke(context)


def test_groups_are_made_of_flags() -> None:
    """Guards values on their way: read, repeated, turned off, as an argument, with a default of the command."""
    seen: list[Any] = []

    def command(
        count: int = 1,
        *,
        model: Annotated[ModelOptions, Take(arguments={"model": "MODEL"})],
        drafting: Annotated[DraftingOptions, Take(without=("share",), defaults={"lossy": True})],
    ) -> int:
        seen.extend([count, model, drafting])
        return 0

    call(command, "a", "--no-fast", "--nodes", "3", "--draft-model", "d", "--draft-model", "e", "--no-base")
    expected = DraftingOptions(nodes=3, draft_model=("d", "e"), base=(), lossy=True)
    assert seen == [1, ModelOptions(model="a", fast=False), expected]
    with pytest.raises(UsageError, match="--base would be ignored beside --no-base"):
        call(command, "--base", "b", "--no-base")


def test_what_was_given_of_several_groups() -> None:
    """Guards commands that read variables too: a flag that was not given must not hide one."""
    seen: list[dict[str, Any]] = []

    def command(given: Annotated[dict[str, Any], Take(ModelOptions), Take(DraftingOptions)]) -> int:
        seen.append(given)
        return 0

    call(command, "--threads", "2", "--memory-limit", "1GB")
    assert seen == [{"threads": 2, "memory_limit": 10**9}]


def test_no_command_spells_out_its_options() -> None:
    """Guards the command line as data: options are fields of groups, and functions take a few groups."""
    for path in Path(speculant.cli.__file__).parent.glob("*.py"):
        module = import_module(f"speculant.cli.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__
            assert not own or len(inspect.signature(function).parameters) <= MAX_PARAMETERS, f"{path.stem}.{name}"
        if path.stem not in ("binding", "main"):  # which makes flags of groups, and has --version
            assert not re.search(r"typer\.(Option|Argument)\b", path.read_text(encoding="utf-8")), path.stem


def test_members_of_enumerations() -> None:
    """Guards values that are named members: the message lists them, and suggests the nearest."""
    assert kinds.member(CorpusKind).read("mix-base") is CorpusKind.MIX_BASE
    assert kinds.member(CorpusKind).read(CorpusKind.SAM) is CorpusKind.SAM
    with pytest.raises(ValueError, match=r"^'sum' is not one of 'mix', 'trigram'"):
        kinds.member(CorpusKind).read("sum")
