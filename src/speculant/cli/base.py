"""`speculant base`: frozen bases, learned from a model, and the user's folder for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speculant.cli.base_learn import register_learn
from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command, Group
from speculant.cli.terminal import print_table, say
from speculant.options import kinds, option
from speculant.options.printing import PrintOptions

if TYPE_CHECKING:
    from speculant.memory.bases import KeptBase

HELP = """\
Make frozen bases; list, add and remove those in your folder of bases.

A base gives the method mix knowledge of a language before its first request. Bases in your folder are matched to models
by their tokenizer. The folder is $SPECULANT_BASES, or speculant/bases in your data folder (~/.local/share). Nothing is
ever downloaded."""
LIST = "List the bases in your folder with their tokenizers and licenses."
ADD = "Verify a base and copy it into your folder."
REMOVE = "Delete a base from your folder. Processes that use it keep it until they end."
EXAMPLES = """
speculant base learn --model your/model --minutes 30 -o own.base
speculant corpus build --kind mix-base --model your/model -o chat.base *.jsonl
speculant base add chat.base --name chat
speculant base list
"""
LIST_EXAMPLES = """
speculant base list
speculant base list --json  # everything in their headers
"""
ADD_EXAMPLES = """
speculant base add chat.base
speculant base add chat.base --name chat --force  # replaces an older one
"""
REMOVE_EXAMPLES = """
speculant base remove chat
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedBase:
    """A base to copy into the folder."""

    file: str = option.option(
        option.REQUIRED, "base written by `corpus build --kind mix-base` or `base learn`", kinds.FILE_NAME
    )
    name: str | None = option.option(None, "name of the base; default: the file's name", kinds.name())
    force: bool = option.option(False, "replace a base of the same name", kinds.FLAG)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedBase:
    """A base to delete from the folder, by name."""

    name: str = option.option(option.REQUIRED, "name from `speculant base list`", kinds.name())


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(cls=Group, help=HELP, epilog=EXAMPLES, rich_markup_mode=None)
    group.command("list", cls=Command, help=LIST, short_help="list your bases", epilog=LIST_EXAMPLES)(bind(list_all))
    group.command("add", cls=Command, help=ADD, short_help="copy a base into your folder", epilog=ADD_EXAMPLES)(
        bind(add)
    )
    short = "delete a base from your folder"
    group.command("remove", cls=Command, help=REMOVE, short_help=short, epilog=REMOVE_EXAMPLES)(bind(remove))
    register_learn(group)
    app.add_typer(group, name="base")


def list_all(printing: PrintOptions) -> int:
    """Print the bases."""
    from speculant.memory.bases import bases_folder, list_bases

    folder = bases_folder()
    found = list_bases(folder, lambda message: say(f"warning: {message}"))
    if printing.json:
        print(json.dumps({"folder": str(folder), "bases": list(map(describe_kept_base, found))}, indent=2))
        return 0
    if not found:
        print(f"there are no bases in {folder}. `speculant corpus build --kind mix-base` makes one.")
        return 0
    rows = [("name", "tokenizer", "license", "ids", "tokens", "MB")]
    rows += [
        (
            base.name,
            base.tokenizer,
            base.facts.get("license") or "not named",
            f"{base.facts.get('vocabulary', 0):,}",
            f"{base.facts.get('tokens', 0):,}",
            f"{base.size / 1e6:.1f}",
        )
        for base in found
    ]
    print_table(rows, names=3)
    return 0


def add(base: Annotated[AddedBase, Take(arguments={"file": "FILE"})]) -> int:
    """Copy a base into the folder."""
    from speculant.memory.bases import add_base, bases_folder

    added = add_base(Path(base.file), folder=bases_folder(), name=base.name, replace=base.force)
    print(f"added       {added.name}: {added.path}")
    return 0


def remove(base: Annotated[RemovedBase, Take(arguments={"name": "NAME"})]) -> int:
    """Delete a base from the folder."""
    from speculant.memory.bases import bases_folder, remove_base

    print(f"removed     {remove_base(base.name, folder=bases_folder())}")
    return 0


def describe_kept_base(base: KeptBase) -> dict[str, Any]:
    """Return the header of a base as JSON."""
    return {
        "name": base.name,
        "file": str(base.path),
        "tokenizer": base.tokenizer,
        "bytes": base.size,
        **base.facts,
    }
