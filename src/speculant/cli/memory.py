"""`speculant memory`: describes, merges and empties memory files."""

from __future__ import annotations

import glob
import json
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speculant.cli.base_facts import NAMES, provenance
from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command, Group
from speculant.cli.files import check_writable
from speculant.cli.terminal import say, waiting
from speculant.core.errors import FileError, ForeignMemoryError, UsageError
from speculant.options import kinds, option
from speculant.options.drafting import DraftingOptions
from speculant.options.printing import PrintOptions

if TYPE_CHECKING:
    from speculant.memory.file import Memory

MERGE = """\
Merge memories of one kind and tokenizer into one.

Name the latest last: where not everything fits, later files and entries that are used more win. If one file began as a
copy of another, what both contain counts twice."""
CLEAR = """\
Replace a memory by an empty one of the same kind and tokenizer, atomically.

A process that has loaded the file writes its contents again when it saves: stop it first. Copies and backups remain."""
EXAMPLES = """
speculant memory info chat.speculant
speculant memory merge mon.speculant tue.speculant -o week.speculant
speculant memory clear chat.speculant
"""
INFO_EXAMPLES = """
speculant memory info chat.speculant
speculant memory info chat.speculant --json
"""
MERGE_EXAMPLES = """
speculant memory merge mon.speculant tue.speculant -o week.speculant
speculant memory merge a.speculant b.speculant -o a.speculant  # into a
"""
CLEAR_EXAMPLES = """
speculant memory clear chat.speculant
speculant memory clear chat.speculant --yes  # without a terminal to ask on
"""
SPANS = ((86400, "day"), (3600, "hour"), (60, "minute"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFile:
    """A memory file, and whether it is emptied without a question."""

    file: str = option.option(option.REQUIRED, "memory file", kinds.FILE_NAME)
    yes: bool = option.option(False, "do not ask for confirmation; required without a terminal", kinds.FLAG)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFiles:
    """The memory files to merge, and the one to write."""

    files: tuple[str, ...] = option.option(
        option.REQUIRED, "two or more files, the latest last", kinds.FILE_NAME, several=True
    )
    output: str = option.option(option.REQUIRED, "new file, or one of those merged", kinds.FILE_NAME, aliases=("-o",))


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group, help="Inspect, merge and clear memory files.", epilog=EXAMPLES, rich_markup_mode=None
    )
    verify = "Verify a memory file's checksums and describe its contents."
    group.command("info", cls=Command, help=verify, short_help="describe a file's contents", epilog=INFO_EXAMPLES)(
        bind(info)
    )
    group.command("merge", cls=Command, help=MERGE, short_help="merge several files into one", epilog=MERGE_EXAMPLES)(
        bind(merge)
    )
    group.command("clear", cls=Command, help=CLEAR, short_help="empty a file", epilog=CLEAR_EXAMPLES)(bind(clear))
    app.add_typer(group, name="memory")


def info(named: Annotated[MemoryFile, Take(only=("file",), arguments={"file": "FILE"})], printing: PrintOptions) -> int:
    """Print the contents of a file."""
    from speculant.memory.file import read_any_memory

    path = Path(named.file)
    tidy(path)
    with waiting(f"reading {path}"):
        found = describe_memory(path, read_any_memory(path))
    if printing.json:
        holds = {name.replace(" ", "_").replace("-", "_"): n for name, n in found["holds"].items()}
        print(json.dumps(found | {"holds": holds}, indent=2))
        return 0
    known = "not recorded" if found["vocabulary"] is None else f"{found['vocabulary']} token ids"
    print(f"kind        {found['kind']}, read by {', '.join(found['methods'])}")
    print(f"tokenizer   fingerprint {found['tokenizer']}")
    print(f"vocabulary  {known}")
    print(f"holds       {sentence(found['holds'])}")
    for line in provenance(found.get("corpus")):
        print(line)
    print(f"bytes       {found['bytes']}, all checksums verified")
    print(f"version     {found['version']} of the format")
    print(f"written     {found['written']}, {ago(found['age_seconds'])}")
    return 0


def merge(
    named: Annotated[MergedFiles, Take(arguments={"files": "FILE"})],
    drafting: Annotated[DraftingOptions, Take(only=("memory_limit",), panel="Options")],
) -> int:
    """Merge several memories into one, up to the limit.

    Raises:
        UsageError: fewer than two files, a file named twice, or an output file that would be lost.
        ForeignMemoryError: the files are of different kinds or tokenizers.
        UnsupportedError: they are frozen bases.
    """
    from speculant.api.memory_kinds import find_memory_kind
    from speculant.memory.file import read_any_memory, write_memory

    paths, target = list(map(Path, named.files)), Path(named.output)
    check_writable(named.output)
    if len(paths) < 2:
        raise UsageError("merging takes two or more files. Name another, or copy the file.")
    for path in paths:
        tidy(path)
    with waiting("reading the memories"):
        memories = [read_any_memory(path) for path in paths]
    places = [path.resolve() for path in paths]
    if len(set(places)) < len(places):
        raise UsageError("a file is named twice; its contents would count twice. Name each file once.")
    if target.exists() and target.resolve() not in places:
        raise UsageError(f"{target} exists and is not one of the files to merge; include it, or name a new file.")
    check_alike(paths, memories)
    first = memories[0]
    with waiting(f"merging into {target}"):
        kind = find_memory_kind(first.kind)
        arrays, facts = kind.merge(memories, drafting.memory_limit)
        write_memory(target.resolve(), kind=first.kind, tokenizer=first.tokenizer, arrays=arrays, facts=facts)
        merged = read_any_memory(target)
    for path, memory in zip([*paths, target], [*memories, merged], strict=True):
        print(f"{'merged' if memory is merged else 'from':<11} {path}: {sentence(kind.describe(memory))}")
    print(f"bytes       {target.stat().st_size}")
    return 0


def clear(named: Annotated[MemoryFile, Take(arguments={"file": "FILE"})]) -> int:
    """Replace a memory by an empty one.

    Raises:
        UsageError: there is no terminal to ask on, and --yes was not given.
        UnsupportedError: it is a frozen base.
    """
    from speculant.api.memory_kinds import find_memory_kind
    from speculant.memory.file import read_any_memory, write_memory

    path = Path(named.file).resolve()  # resolves links to the file with the contents
    tidy(path)
    memory = read_any_memory(path)
    kind = find_memory_kind(memory.kind)
    check_writable(str(path))
    arrays, facts = kind.empty(memory)
    held = f"{path}, a memory of kind {memory.kind}: {sentence(kind.describe(memory))}"
    if not named.yes and not ask_to_overwrite(held):
        say("nothing was changed.")
        return 1
    write_memory(path, kind=memory.kind, tokenizer=memory.tokenizer, arrays=arrays, facts=facts)
    print(f"cleared     {held}")
    print(f"bytes       {path.stat().st_size}")
    for name in sorted(glob.glob(f"{glob.escape(str(path.parent / f'.{path.name}'))}.*")):
        say(f"note: {name} may be left from a killed save, with the same contents. Delete it if no save is running.")
    return 0


def tidy(path: Path) -> None:
    """Remove the leftovers of killed saves of a memory."""
    from speculant.memory.aside import remove_stale

    for each in remove_stale(path.resolve()):
        say(f"note: removed {each}, left from a killed save.")


def ask_to_overwrite(held: str) -> bool:
    """Ask whether a memory may be overwritten.

    Raises:
        UsageError: there is no terminal to ask on.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "clearing permanently deletes what was learned, and there is no terminal for confirmation. Add --yes."
        )
    say(f"{held}. Delete all of it? [y/N]")
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:
        return False


def check_alike(paths: list[Path], memories: list[Memory]) -> None:
    """Refuse to merge memories that do not match.

    Raises:
        ForeignMemoryError: the kinds or the tokenizers differ.
    """
    for path, memory in zip(paths[1:], memories[1:], strict=True):
        if memory.kind != memories[0].kind:
            raise ForeignMemoryError(
                f"{path} holds a memory of kind '{memory.kind}', {paths[0]} one of kind '{memories[0].kind}'. "
                "Merge files of one kind."
            )
        if memory.tokenizer != memories[0].tokenizer:
            raise ForeignMemoryError(
                f"{path} was made with another tokenizer (fingerprint {memory.tokenizer}) than {paths[0]} "
                f"({memories[0].tokenizer}); their token ids mean different tokens. Merge files of one tokenizer."
            )


def describe_memory(path: Path, memory: Memory) -> dict[str, Any]:
    """Return a description of a file.

    Raises:
        FileError: the file no longer exists.
    """
    from speculant.api.memory_kinds import find_memory_kind, methods_reading
    from speculant.memory.file import VERSION

    kind = find_memory_kind(memory.kind)
    try:
        status = path.stat()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    written = datetime.fromtimestamp(int(status.st_mtime), timezone.utc)
    corpus = {name: memory.facts[name] for name in NAMES if name in memory.facts}
    return {
        "file": str(path),
        "kind": memory.kind,
        "methods": [method.name for method in methods_reading(memory.kind)],
        "tokenizer": memory.tokenizer,
        "vocabulary": memory.facts.get("vocabulary"),
        "holds": kind.describe(memory),
        "bytes": status.st_size,
        "checksums": "verified",
        "version": VERSION,
        "written": written.isoformat(),
        "age_seconds": max(0, int(time.time() - status.st_mtime)),
        **({"corpus": corpus} if corpus else {}),
    }


def sentence(holdings: dict[str, int]) -> str:
    """Return the contents of a memory as a sentence."""
    return ", ".join(f"{n:,} {name}" for name, n in holdings.items())


def ago(seconds: int) -> str:
    """Return an age in its largest whole unit."""
    for length, name in SPANS:
        if seconds >= length:
            n = seconds // length
            return f"{n} {name}{'s' if n > 1 else ''} ago"
    return "less than a minute ago"
