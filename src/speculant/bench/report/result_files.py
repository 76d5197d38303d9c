"""The files of a benchmark: result.json, table.md and report.html, which contain no prompts or outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from speculant.bench.report.bench_page import bench_page
from speculant.bench.report.bench_table import bench_table, divergence_sentences, legend, markdown
from speculant.bench.report.scaling_table import scaling_markdown
from speculant.bench.report.summary import measurement_warnings
from speculant.core.errors import FileError

RESULT, TABLE, PAGE = "result.json", "table.md", "report.html"


def write_results(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    *,
    labels: Sequence[str],
    notes: Sequence[str],
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    scaling: Mapping[str, Any] | None = None,
    page: bool = True,
) -> None:
    """Write result.json and table.md, and then report.html.

    Args:
        folder: output folder.
        rows: rows of `summary.summary`.
        labels: important labels such as "forced".
        notes: how it was run, one sentence each.
        settings, environment: must match for two results to be comparable.
        scaling: result of `scaling.measure.measure_scaling`, if requested.
        page: whether to write report.html, which needs Jinja2 and matplotlib.

    Raises:
        FileError: they cannot be written.
        UnsupportedError: Jinja2 or matplotlib is not installed; the other two files have been written.
    """
    warnings = measurement_warnings(rows)
    result: dict[str, Any] = {
        "methods": list(rows),
        "labels": list(labels),
        "notes": [*notes, *warnings],
        "settings": dict(settings),
        "environment": dict(environment),
    }
    if scaling is not None:
        result["growth"] = dict(scaling)  # the name used by earlier versions
    labelled = [f"Labels: {', '.join(labels)}."] if labels else []
    lines = bench_table(rows)
    measured = [markdown(lines), legend(lines)] if rows else []
    scaled = scaling_markdown(scaling) if scaling is not None else []
    table = [*measured, *labelled, *warnings, " ".join(notes), *divergence_sentences(rows), *scaled]
    _write(folder / RESULT, json.dumps(result, indent=2) + "\n")
    _write(folder / TABLE, "\n\n".join(part for part in table if part) + "\n")
    if page:
        shown = bench_page(
            rows, labels=labels, notes=notes, warnings=warnings, environment=environment, scaling=scaling
        )
        _write(folder / PAGE, shown)


def read_result(path: Path) -> dict[str, Any]:
    """Return the contents of a result.json.

    Args:
        path: path of the file, or of its folder.

    Raises:
        FileError: it cannot be read, or is not the result of a benchmark.
    """
    file = path / RESULT if path.is_dir() else path
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}.") from error
    except ValueError as error:
        raise FileError(f"{file} is not JSON: {error}.") from error
    if not isinstance(found, dict) or not isinstance(found.get("methods"), list):
        raise FileError(f"{file} is not a result of `speculant bench`.")
    return found


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}.") from error
