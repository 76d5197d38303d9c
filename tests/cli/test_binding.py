"""Commands made of groups of options: flags, arguments, repeated values, and what was given."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

import speculant.cli
from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.core.errors import UsageError
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions

MAX_PARAMETERS = 20


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


def test_no_command_spells_out_many_parameters() -> None:
    """Guards the signatures of the command line: what is shared or long is a group of options."""
    for path in Path(speculant.cli.__file__).parent.glob("*.py"):
        module = import_module(f"speculant.cli.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            assert len(inspect.signature(function).parameters) <= MAX_PARAMETERS, f"{path.stem}.{name}"
