"""Base classes of the commands: help rendered by `cli.help`, and suggestions for mistyped command names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, ClassVar

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command.

    Attributes:
        lists: options that take every value up to the next option, as in `--forced a.jsonl b.jsonl`.
    """

    lists: ClassVar[Sequence[str]] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with list options expanded to one option per value."""
        for name in self.lists:
            args = repeat_flag(args, name)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return arguments and options."""
        return list(map(light, super().get_params(ctx)))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        from speculant.cli.help import help_page

        formatter.write(help_page(self, ctx))


class Group(TyperGroup):
    """A command with subcommands."""

    def summaries(self, ctx: Any) -> dict[str, str]:
        """Return a one-line summary of each command."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        return {name: each.short_help or "" for name, each in found.items() if each is not None}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command named by the arguments; a mistyped name is refused with the most similar one."""
        if args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], names, n=1, cutoff=0.5)
            hint = f" Did you mean '{near[0]}'?" if near else f" There are {', '.join(names)}."
            ctx.fail(f"there is no command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return arguments and options."""
        return list(map(light, super().get_params(ctx)))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        from speculant.cli.help import help_page

        formatter.write(help_page(self, ctx))


def light(param: Any) -> Any:
    """Return a parameter that leaves missing values alone: typer imports pydantic to convert any."""
    convert = type(param).process_value

    def process_value(ctx: Any, value: Any) -> Any:
        return None if value is None and not param.required else convert(param, ctx, value)

    param.process_value = process_value
    return param


def repeat_flag(args: Sequence[str], name: str) -> list[str]:
    """Expand `name a b` in arguments to `name a name b`."""
    found: list[str] = []
    listing = empty = False
    for place, arg in enumerate(args):
        if arg == "--":
            return found + list(args[place:])
        if arg == name:
            listing = empty = True
            found.append(name)
        elif listing and (arg == "-" or not arg.startswith("-")):
            found += [arg] if empty else [name, arg]
            empty = False
        else:
            listing = False
            found.append(arg)
    return found
