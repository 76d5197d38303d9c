"""Reads functions of an installed package in its source, without importing it."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path


class EngineSource:
    """The Python files of a package."""

    def __init__(self, package: str) -> None:
        self._package = package

    @property
    def missing(self) -> bool:
        """Whether the package is not there."""
        return find_spec(self._package) is None

    def find(self, file: str, name: str) -> ast.AST:
        """Return a function or class of a file; methods are named CLASS.METHOD."""
        spec = find_spec(self._package)
        assert spec is not None
        assert spec.submodule_search_locations
        path = Path(spec.submodule_search_locations[0]) / file
        tree: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
        for part in name.split("."):
            kinds = (ast.FunctionDef, ast.ClassDef)
            [tree] = [each for each in ast.iter_child_nodes(tree) if isinstance(each, kinds) and each.name == part]
        return tree


def parameters(function: ast.AST) -> list[str]:
    """Return the names of a function's parameters."""
    assert isinstance(function, ast.FunctionDef)
    return [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]


def fields(definition: ast.AST) -> list[str]:
    """Return the names of a dataclass's fields."""
    assert isinstance(definition, ast.ClassDef)
    return [ast.unparse(each.target) for each in definition.body if isinstance(each, ast.AnnAssign)]


def calls(within: ast.AST, ending: str) -> list[ast.Call]:
    """Return the calls of what is written with such an end, in order."""
    found = [each for each in ast.walk(within) if isinstance(each, ast.Call)]
    return [each for each in found if ast.unparse(each.func).endswith(ending)]


def passed(call: ast.Call) -> list[str]:
    """Return what a call passes, as it is written."""
    named = [f"{each.arg}={ast.unparse(each.value)}" for each in call.keywords]
    return [ast.unparse(each) for each in call.args] + named
