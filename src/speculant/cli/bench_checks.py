"""Checks of the options of `speculant bench` before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.api.loading import find_draft_model, find_model, load_config
from speculant.bench.suite.rows import check_same
from speculant.bench.systems.hf_names import PREFIX, check_hf
from speculant.cli.conditions import find_known_conditions
from speculant.cli.files import file_size
from speculant.cli.head_file import find_head
from speculant.cli.terminal import importing
from speculant.core.errors import FileError, UsageError
from speculant.core.packages import check_packages
from speculant.memory.bases import find_base, read_base_header
from speculant.registry import find_method

if TYPE_CHECKING:
    from speculant.cli.bench_settings import BenchOptions

ROWS = "rows.jsonl"
RESULTS = ("result.json", "table.md", "report.html")


def check(asked: BenchOptions) -> None:
    """Check that the options are consistent, before anything is loaded.

    Args:
        asked: the options.

    Raises:
        UsageError, FileError: they are not.
    """
    if asked.forced or asked.tasks is not None:
        task_names(asked)
    if (asked.forced and asked.tasks is not None) or not (asked.forced or asked.tasks or asked.growth):
        raise UsageError("name what to decode: either --tasks, or --forced and recorded outputs; or --growth.")
    if asked.config is not None and not asked.forced and (asked.tasks is not None or not asked.growth):
        raise UsageError("random weights generate no useful text: --config needs --forced TRACES or --growth.")
    if asked.config is not None and asked.loading.model is not None:
        raise UsageError("MODEL and --config both name the model; leave one out.")
    ignored = [name for name in ("max_new_tokens", "data") if asked.forced and getattr(asked, name) is not None]
    if ignored:
        raise UsageError(f"a forced run takes its texts and lengths from the recordings; leave {flags(ignored)} out.")
    if asked.tokenizer is not None and not asked.forced:
        raise UsageError("--tokenizer is for recordings, so it needs --forced; a model has its own.")
    check_folder(Path(asked.out), restart=asked.restart)
    if not asked.restart and (before := earlier_settings(Path(asked.out) / ROWS)) is not None:
        known = find_known_conditions(asked)
        check_same(Path(asked.out), before, known, known)
    if asked.forced and any(asked.temperature):
        raise UsageError("a forced run follows recorded outputs and samples nothing; leave --temperature out.")
    if asked.seed is not None and not any(asked.temperature):
        raise UsageError("--seed would be ignored: decoding is greedy. Add --temperature 1, or leave --seed out.")
    check_methods(asked.methods or "")
    check_named(asked)


def check_methods(names: str) -> None:
    """Check the names in a list "NAME,..."; whether they suit the model is checked later.

    Raises:
        UnknownMethodError, UsageError: there is no such method.
        UnsupportedError: a package is not installed.
    """
    for name in filter(None, map(str.strip, names.split(","))):
        if name.startswith(PREFIX):
            check_hf(name, draft_model=True)
        elif name == "llamacpp":
            check_packages(("gguf", "llama_cpp"), what="llamacpp in --methods", extra="llamacpp")
        else:
            find_method(name)


def check_named(asked: BenchOptions) -> None:
    """Check that the folders and files named by options exist.

    Raises:
        ModelNotFoundError, FileError: one does not.
    """
    from speculant.cli import loading_checks
    from speculant.cli.gguf_loading import is_gguf_model

    if asked.config is None:
        loading_checks.check_named(asked.loading)
    else:
        loading_checks.check_placement(asked.loading.dtype, asked.loading.device)
        file_size(Path(asked.config) / "config.json" if Path(asked.config).is_dir() else Path(asked.config))
    if asked.drafting.draft_model is not None:
        find_draft_model(asked.drafting.draft_model)
    if asked.drafting.head is not None:
        find_head(asked.drafting.head)
    for base in asked.drafting.base:
        read_base_header(find_base(base))
    if asked.inflate is not None:
        layers, mlp = inflation(asked.inflate)
        if not is_gguf_model(asked.loading.model):
            check_inflated(asked, layers, mlp)


def check_inflated(asked: BenchOptions, layers: int, mlp: int | None) -> None:
    """Check with the model's config that it can be inflated, before its weights are loaded.

    Raises:
        UnsupportedError, UsageError: it cannot.
        ModelNotFoundError, FileError: there is no such config.
    """
    with importing("PyTorch and transformers"):
        from speculant.bench.systems.inflate import check_inflation
        from speculant.bench.systems.random_weights import read_shape

        named = asked.config is not None
        config = read_shape(Path(str(asked.config))) if named else load_config(find_model(asked.loading.model))
    check_inflation(config, layers=layers, mlp=mlp)


def inflation(text: str) -> tuple[int, int | None]:
    """Parse "LAYERS[xMLP]" into the number of layers and the width of MLPs.

    Raises:
        UsageError: it has another form.
    """
    layers, _, mlp = text.partition("x")
    if not layers.isdigit() or (mlp and not mlp.isdigit()):
        raise UsageError(f"--inflate takes LAYERS or LAYERSxMLP, such as 24 or 24x8192, not '{text}'.")
    return int(layers), int(mlp) if mlp else None


def check_folder(folder: Path, *, restart: bool) -> None:
    """Check that the results folder has no files with our names that `speculant bench` did not write.

    Raises:
        FileError: it is a file.
        UsageError: it has such files.
    """
    if folder.is_file():
        raise FileError(f"{folder} is a file; name a folder by --out.")
    rows = folder / ROWS
    if rows.exists():
        foreign = [ROWS] if restart and earlier_settings(rows) is None else []
    else:
        foreign = [name for name in RESULTS if (folder / name).exists()]
    if foreign:
        raise UsageError(
            f"{folder} holds {' and '.join(foreign)} that `speculant bench` did not write; they are not overwritten. "
            "Name a new folder by --out."
        )


def earlier_settings(rows: Path) -> dict[str, Any] | None:
    """Return the settings of a run from the start of its file of rows; None if there is no such file."""
    try:
        with rows.open(encoding="utf-8") as file:
            settings = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return None
    return settings if isinstance(settings, dict) and "trials" in settings else None


def flags(names: Sequence[str]) -> str:
    """Return option names as they are typed."""
    return " and ".join(f"--{name.replace('_', '-')}" for name in names)


def task_names(asked: BenchOptions) -> list[str]:
    """Return the tasks named by --tasks or --forced.

    Raises:
        UsageError: there are none, or two with the same name.
    """
    given = asked.forced or [name.strip() for name in (asked.tasks or "").split(",") if name.strip()]
    names = list(dict.fromkeys(given))
    called = [Path(name).stem for name in names]
    if not names or len(set(called)) < len(called):
        raise UsageError("name at least one task, and give files different names: results are listed by file name.")
    return names
