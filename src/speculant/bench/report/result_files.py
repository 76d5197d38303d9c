"""The files of a benchmark: result.json, table.md and report.html, none of which holds prompts or outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from speculant.bench.report.bench_page import bench_page
from speculant.bench.report.bench_table import LEGEND, bench_table, divergence_sentences, markdown
from speculant.bench.report.scaling_table import scaling_markdown
from speculant.bench.report.summary import measurement_warnings
from speculant.core.errors import FileError

RESULT = "result.json"


def write_results(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    *,
    labels: Sequence[str],
    notes: Sequence[str],
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    scaling: Mapping[str, Any] | None = None,
) -> None:
    """Write the three files.

    Args:
        folder: where.
        rows: of `summary.summary`.
        labels: what a reader must not overlook, such as "forced".
        notes: how it was run, a sentence each.
        settings, environment: what must agree for two results to be comparable.
        scaling: of `scaling.measure.measure_scaling`, if that was asked for.

    Raises:
        FileError: they cannot be written.
        UnsupportedError: Jinja2 or matplotlib is not installed.
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
        result["growth"] = dict(scaling)  # the name that earlier versions read
    labelled = [f"Labels: {', '.join(labels)}."] if labels else []
    measured = [markdown(bench_table(rows)), LEGEND.replace("\n", " ")] if rows else []
    scaled = scaling_markdown(scaling) if scaling is not None else []
    table = [*measured, *labelled, *warnings, " ".join(notes), *divergence_sentences(rows), *scaled]
    page = bench_page(rows, labels=labels, notes=notes, warnings=warnings, environment=environment, scaling=scaling)
    files = {
        RESULT: json.dumps(result, indent=2) + "\n",
        "table.md": "\n\n".join(part for part in table if part) + "\n",
        "report.html": page,
    }
    try:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write to {folder}: {error.strerror}.") from error


def read_result(path: Path) -> dict[str, Any]:
    """Return the contents of a result.json.

    Args:
        path: of the file, or of its folder.

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
