"""Docstrings name what exists: a renamed class or function is renamed where others refer to it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import speculant

SOURCE = Path(speculant.__file__).parent
REFERENCE = re.compile(r"`([A-Za-z_][\w.]*\w)`")
COMPOUND = re.compile(r"\w\.\w|_|[a-z][A-Z]|^[A-Z][a-z]")  # a single small word may be prose
FOREIGN = {  # names of other projects, and of files
    *("Experts", "Host"),
    *("EngineCore.post_step", "Gemma4AssistantForCausalLM", "ModelRunner.capture_cudagraph", "_expand_kernel_impl"),
    *("compression_ratio_threshold", "condition_on_prev_tokens", "desc_act", "extract_hidden_states", "find_slot"),
    *("logprob_threshold", "no_speech_threshold", "setup.py", "sglang.srt.plugins", "slot_mappings"),
    *("use_experts_implementation", "x._weight_qdata", "x._weight_scale"),
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def names_in(tree: ast.AST) -> set[str]:
    """Return the names that code uses or defines, and the words of its short strings, which may name settings."""
    found, nodes = set[str](), list(ast.walk(tree))
    texts = {node.value for node in nodes if isinstance(node, ast.Expr)}  # docstrings prove nothing themselves
    for node in nodes:
        for field in ("name", "id", "attr", "arg", "asname", "module"):
            value = getattr(node, field, None)
            found |= set(value.split(".")) if isinstance(value, str) else set()
        text = node.value if isinstance(node, ast.Constant) and node not in texts else None
        if isinstance(text, str) and len(text) < 80:
            found |= set(re.findall(r"\w+", text))
    return found


def test_names_in_docstrings_exist() -> None:
    """Guards readers: a name in backticks leads somewhere."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    known = {part for path in trees for part in (path.stem, path.parent.name)}
    compiled = [*SOURCE.rglob("*.cpp"), *SOURCE.rglob("*.h")]
    known |= {word for path in compiled for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    known = known.union(*map(names_in, trees.values()))
    wrong = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED)
        for name in REFERENCE.findall(ast.get_docstring(node) or "")
        if COMPOUND.search(name) and name not in FOREIGN and not known.issuperset(name.split("."))
    ]
    assert wrong == []


def test_a_class_name_means_one_thing() -> None:
    """Guards readers and stack traces: no two classes of the package have the same name."""
    found = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in found.items() if count > 1] == []
