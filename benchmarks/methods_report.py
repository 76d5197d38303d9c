"""Markdown tables that compare the measured methods, from the files of benchmarks/methods_table.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = ("MAT", "speed-up", "drafting", "identical")
SLOWER = "slower"

Result = Mapping[str, Any]


def methods_table(results: Sequence[Result]) -> str:
    """Return a row per method with its figures on each target, followed by the methods that could not run.

    The speed-up is the ratio of total times; values below 1 are marked.
    """
    targets = [each["conditions"]["target"] for each in results]
    columns = [f"{target}: {COLUMNS[0]}" if not place else COLUMNS[place] for target in targets for place in range(4)]
    names = list(dict.fromkeys(name for each in results for name in each["methods"] if "mat" in each["methods"][name]))
    lines = [("method", *columns), ("---", *["---:"] * len(columns))]
    for name in names:
        lines.append((f"`{name}`", *(cell for each in results for cell in _cells(each["methods"].get(name, {})))))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([table, *map(_conditions, results), *_left_out(results)])


def _cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    if "mat" not in figures:
        return ("-",) * len(COLUMNS)
    speedup, draft = figures["speedup"], figures["time_share"]["draft"]
    return (
        f"{figures['mat']:.2f}",
        f"{speedup:.2f}" if speedup >= 1 else f"{speedup:.2f} ({SLOWER})",
        "-" if draft is None else f"{draft:.0%}",
        f"{figures['identical']}/{figures['compared']}" if figures["compared"] else "lossy",
    )


def _conditions(result: Result) -> str:
    """Return the measurement conditions of one target."""
    asked = result["conditions"]
    models = {each.get("draft_model") for each in result["methods"].values()} - {None}
    drafts = f", draft model {' and '.join(sorted(models))}" if models else ""
    return (
        f"{asked['target']}: {asked['parameters'] / 1e6:.1f} million parameters, {asked['dtype']}, "
        f"{asked['threads']} {'thread' if asked['threads'] == 1 else 'threads'}, {asked['requests']} prompts of "
        f"{asked['prompt_tokens']} tokens, {asked['max_new_tokens']} new tokens each, greedy{drafts}."
    )


def _left_out(results: Sequence[Result]) -> list[str]:
    """Return a line for each method that could not run."""
    return [
        f"`{name}` was not run on {result['conditions']['target']}: {figures['skipped']}"
        for result in results
        for name, figures in result["methods"].items()
        if "skipped" in figures
    ]
