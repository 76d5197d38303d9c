"""`speculant methods`: the drafting methods, and the settings of one."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.cli.terminal import takes_color
from speculant.core.errors import UsageError
from speculant.options import kinds, option
from speculant.options.printing import PrintOptions
from speculant.registry import METHODS, VERIFIERS, Method, find_method

if TYPE_CHECKING:
    from speculant.registry.settings import Setting

HELP = "List the drafting methods, or describe one with its settings for --set."
EXAMPLES = """
speculant methods        # all of them
speculant methods mix    # one, with its settings
speculant methods --markdown   # the table of the documentation
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingOptions:
    """What is listed."""

    name: str | None = option.option(None, "method to describe", kinds.name(lambda: [*METHODS]))
    markdown: bool = option.option(False, "print a Markdown table of all methods", kinds.FLAG)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("methods", cls=Command, help=HELP, epilog=EXAMPLES)(bind(methods))


def methods(printing: PrintOptions, options: Annotated[ListingOptions, Take(arguments={"name": "NAME"})]) -> int:
    """Print the registry, or one method with its settings."""
    name, as_json = options.name, printing.json
    if options.markdown:
        if as_json or name is not None:
            raise UsageError("--markdown prints the table of all methods; leave out NAME and --json.")
        from speculant.cli.methods_table import markdown_table

        print(markdown_table(list(METHODS.values())))
    elif name is not None:
        method = find_method(name)
        from speculant.registry.settings import settings_of

        settings = list(settings_of(method.settings_class()).values())
        print(json.dumps(to_json(method) | {"settings": [setting_json(each) for each in settings]}, indent=2)
              if as_json else describe_method(method, settings))  # fmt: skip
    elif as_json:
        print(json.dumps([to_json(method) for method in METHODS.values()], indent=2))
    else:
        print(f"{table(list(METHODS.values()))}\n\n{rules(list(METHODS.values()))}")
    return 0


def table(listed: list[Method]) -> str:
    """Return an aligned table; summaries and requirements are on their own lines, so that it fits on a terminal.

    Written without rich, whose import would take half of the command's time budget.
    """
    rows = [("name", "family", "exactness", "source")]
    rows += [(method.name, method.family, method.exactness, method.source) for method in listed]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    indent = " " * (widths[0] + 2)
    bold, cyan, reset = ("\033[1m", "\033[36m", "\033[0m") if takes_color(sys.stdout) else ("", "", "")
    parts = [f"{bold}{lines[0]}{reset}"]
    for line, method in zip(lines[1:], listed, strict=True):
        parts.append(f"{cyan}{method.name}{reset}{line[len(method.name) :]}\n{indent}{method.summary}")
        if method.requires:
            parts.append(f"{indent}requires {method.requires}")
    return "\n".join(parts)


def rules(listed: list[Method]) -> str:
    """Return the acceptance rules, each with its description and the methods that use it by default."""
    import textwrap

    lines = ["acceptance rules, for --verifier:"]
    width = max(map(len, VERIFIERS)) + 2
    for rule in VERIFIERS.values():
        users = [method.name for method in listed if method.verifier == rule.name]
        text = f"(lossy, needs --lossy) {rule.summary}" if rule.lossy else rule.summary
        text += f"; default of {', '.join(users)}" if users else ""
        lines += textwrap.wrap(text, 110, initial_indent=f"  {rule.name:<{width}}", subsequent_indent=" " * (width + 2))
    return "\n".join(lines)


def describe_method(method: Method, settings: list[Setting]) -> str:
    """Return a description of one method."""
    import textwrap

    verifiers = [f"{rule} (default)" if rule == method.verifier else rule for rule in method.verifiers]
    lines = [
        f"{method.name}: {method.summary}",
        "",
        f"family      {method.family}",
        f"exactness   {method.exactness}",
        f"requires    {method.requires or 'nothing but the target'}",
        f"source      {method.source}",
        f"verifier    {', '.join(verifiers)}",
        f"memory      {_memory(method)}",
        "",
    ]
    if not settings:
        return "\n".join([*lines, "It has no settings."])
    lines.append("settings, each by --set NAME=VALUE:")
    for each in settings:
        lines.append(f"  {each.name}={each.default}".ljust(26) + f"  {each.values}")
        lines += textwrap.wrap(each.description, 76, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _memory(method: Method) -> str:
    if method.keeps_memory:
        return "can be saved: --memory FILE"
    return "starts from a corpus: --memory FILE, never written" if method.loads_memory else "not kept between runs"


def to_json(method: Method) -> dict[str, Any]:
    """Return a method as JSON."""
    return {
        "name": method.name,
        "family": method.family,
        "exactness": method.exactness,
        "summary": method.summary,
        "source": method.source,
        "requires": method.requires,
        "memory": method.memory is not None,
        "verifier": method.verifier,
        "verifiers": list(method.verifiers),
    }


def setting_json(setting: Setting) -> dict[str, Any]:
    """Return a setting as JSON."""
    return {
        "name": setting.name,
        "type": setting.values,
        "default": setting.default,
        "description": setting.description,
    }
