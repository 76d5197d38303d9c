"""The help pages: usage, description, arguments and options in groups, commands, examples."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDEST = 100  # maximum characters per line
WIDEST_NAME = 30
GENERAL = {
    "--help": "print this help and exit",
    "--install-completion": "install completion for the current shell",
    "--show-completion": "print the completion script for the current shell",
}


def help_page(command: Any, ctx: Any) -> str:
    """Return a command's help, coloured if standard output supports it.

    Args:
        command: a typer command.
        ctx: its context.
    """
    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    with console.capture() as captured:
        _print(console, command, ctx)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _print(console: Console, command: Any, ctx: Any) -> None:
    console.print(Text.assemble(("Usage: ", "bold"), usage(command, ctx)))
    if command.help:
        for paragraph in inspect.cleandoc(command.help).split("\n\n"):
            console.print()
            console.print(Padding(Text(" ".join(paragraph.split())), (0, 0, 0, 2)))
    panels = sections(command, ctx)
    width = min(WIDEST_NAME, max(len(name) for rows in panels.values() for name, _ in rows))
    for title, rows in panels.items():
        console.print()
        console.print(Text(title, style="bold"))
        console.print(Padding(grid(rows, width), (0, 0, 0, 2)))
    if command.epilog:
        console.print()
        console.print(Text("Examples", style="bold"))
        for line in inspect.cleandoc(command.epilog).splitlines():
            code, mark, comment = line.partition("  #")
            console.print(Text.assemble("  ", (code, "green"), (mark + comment, "dim")), soft_wrap=True)


def usage(command: Any, ctx: Any) -> str:
    """Return the command's usage line."""
    parts = [ctx.command_path, "[OPTIONS]"]
    for param in command.get_params(ctx):
        if param.param_type_name == "argument":
            name = param.metavar or param.name.upper()
            several = "..." if param.nargs != 1 else ""
            parts.append(f"{name}{several}" if param.required else f"[{name}]{several}")
    return " ".join([*parts, "COMMAND [ARGS]..."] if hasattr(command, "list_commands") else parts)


def sections(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Return name and help of every argument, command and option, by section."""
    found: dict[str, list[tuple[str, str]]] = {}
    params = [param for param in command.get_params(ctx) if not getattr(param, "hidden", False)]
    for param in params:
        if param.param_type_name == "argument":
            found.setdefault("Arguments", []).append((param.metavar or param.name.upper(), param.help or ""))
    if hasattr(command, "list_commands"):
        found["Commands"] = list(command.summaries(ctx).items())
    for param in params:
        if param.param_type_name == "option":
            panel = getattr(param, "rich_help_panel", None) or "Options"
            text = GENERAL.get(param.opts[0]) or getattr(param, "help", None) or ""
            found.setdefault(panel, []).append((option_name(param), text))
    return found


def option_name(param: Any) -> str:
    """Return an option as it is typed, short form first, with its value's name."""
    name = ", ".join([*sorted(param.opts, key=len), *param.secondary_opts])
    takes_value = not param.is_flag and param.metavar
    return f"{name} {param.metavar}" if takes_value else name


def grid(rows: Iterable[tuple[str, str]], width: int) -> Table:
    """Return names next to their help; a name that is too long is on its own line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(width=width, no_wrap=True, overflow="ignore")
    table.add_column()
    for name, text in rows:
        if len(name) > width:
            half = name.find(", --", 1) + 1 or name.rfind(" ")
            table.add_row(Text(name[:half].rstrip(), style="cyan"), Text(text))
            table.add_row(Text(f"  {name[half:].lstrip()}", style="cyan"), "")
        else:
            table.add_row(Text(name, style="cyan"), Text(text))
    return table
