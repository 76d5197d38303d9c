"""What a benchmark leaves behind: result.json, table.md and report.html, none of which holds prompts or outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from speculant.bench.report.bench_page import sheet
from speculant.bench.report.scaling_section import growth_markdown
from speculant.bench.report.bench_table import LEGEND, differences, markdown, scores
from speculant.core.errors import FileError

RESULT = "result.json"


def write_records(
    folder: Path,
    figures: Sequence[dict[str, Any]],
    *,
    labels: Sequence[str],
    notes: Sequence[str],
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    growth: Mapping[str, Any] | None = None,
) -> None:
    """Write the three.

    Args:
        folder: where.
        figures: of `summary.summary`.
        labels: what a reader must not overlook, such as "forced".
        notes: how it was run, a sentence each.
        settings, environment: what makes it comparable.
        growth: of `growth.measure_growth`, if that was asked for.

    Raises:
        FileError: they cannot be written.
    """
    result: dict[str, Any] = {
        "methods": list(figures),
        "labels": list(labels),
        "notes": list(notes),
        "settings": dict(settings),
        "environment": dict(environment),
    }
    if growth is not None:
        result["growth"] = dict(growth)
    told = [f"Labels: {', '.join(labels)}."] if labels else []
    measured = [markdown(scores(figures)), LEGEND.replace("\n", " ")] if figures else []
    grown = growth_markdown(growth) if growth is not None else []
    table = [*measured, *told, " ".join(notes), *differences(figures), *grown]
    files = {
        RESULT: json.dumps(result, indent=2) + "\n",
        "table.md": "\n\n".join(part for part in table if part) + "\n",
        "report.html": sheet(figures, labels=labels, notes=notes, environment=environment, growth=growth),
    }
    try:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write to {folder}: {error.strerror}.") from error


def read_result(path: Path) -> dict[str, Any]:
    """Return a result.json, named itself or by its folder.

    Raises:
        FileError: it is none.
    """
    file = path / RESULT if path.is_dir() else path
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}.") from error
    except ValueError as error:
        raise FileError(f"{file} is not JSON: {error}.") from error
    if not isinstance(found, dict) or not isinstance(found.get("methods"), list):
        raise FileError(f"{file} is no result of `speculant bench`.")
    return found
