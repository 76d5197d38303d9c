"""The packages and what they may import: arrows point one way, and there are no cycles."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import speculant

SOURCE = Path(speculant.__file__).parent
LEVELS = (
    {"core"},
    {"memory"},
    {"sizing", "verifiers", "drafters"},
    {"registry"},
    {"options"},
    {"engines", "sharing"},
    {"decoding", "training"},
    {"api"},
    {"integrations", "corpus", "retrieval"},
    {"serving", "bench"},
    {"cli"},
)
REFERENCE = re.compile(r"speculant(\.\w+)+(\.|:\w+)?")  # "module", "module.name", "module:name", or "module." of more
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = ("speculant", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return the nodes of a file that may name modules."""
    kinds = (ast.ImportFrom, ast.Import, ast.Constant)
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a file imports, wherever in it, also for type checkers only.

    A module that a string names, as in "speculant.drafters.none:NoDrafter", is imported as well, only later.
    """
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "speculant":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "speculant")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and REFERENCE.fullmatch(node.value):
            parts = node.value.partition(":")[0].rstrip(".").split(".")
            heads = (".".join(parts[:length]) for length in range(len(parts), 1, -1))
            yield from [name for name in heads if name in known][:1]


def room(module: str) -> str:
    """Return the package below `speculant` that a module stands in; "" for the public names themselves."""
    return [*module.split("."), ""][1]


def test_every_room_has_a_level() -> None:
    """Guards new packages: where they stand is decided, not left open."""
    assert {room(name) for name in modules()} - {"", "__main__"} <= set(LEVEL)


def test_arrows_point_one_way() -> None:
    """Guards the order of the rooms: each imports from lower ones alone, beside itself."""
    known, wrong = modules(), []
    for name, path in known.items():
        for target in imports(path, known):
            here, there = room(name), room(target)
            if here in ("", "__main__") or not there or here == there:
                continue
            if LEVEL[there] >= LEVEL[here]:
                wrong.append(f"{name} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_modules_do_not_import_each_other() -> None:
    """Guards against cycles of files, also under TYPE_CHECKING."""
    known = modules()
    graph: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        graph[name] = {target for target in imports(path, known) if target not in (name, "speculant")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_references_in_strings_count(tmp_path: Path) -> None:
    """Guards the drawing itself: a module that is loaded by a name in a string is seen, and other texts are not."""
    file = tmp_path / "a.py"
    file.write_text(
        'a = "speculant.training.kinds:KINDS", "speculant.drafters.none.NoDrafter", f"speculant.cli.{a}"\n'
        'b = "see speculant.core.tree", "speculant", "speculant.unknown:x"\n'
    )
    assert set(imports(file, modules())) == {"speculant.training.kinds", "speculant.drafters.none", "speculant.cli"}


@pytest.mark.parametrize("name", ["core", "memory", "sizing", "decoding", "verifiers", "drafters", "sharing"])
def test_no_engine_below_the_api(name: str) -> None:
    """Guards drafters and the round, which run inside any engine: engines are imported by engines/ alone."""
    heavy = {"transformers", "llama_cpp", "vllm"}
    for path in (SOURCE / name).rglob("*.py"):
        for node in nodes(path):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not heavy & {each.split(".")[0] for each in named}, path
