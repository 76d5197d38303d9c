"""How the cost of a round scales, as a table and in sentences, for the terminal, Markdown and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speculant.bench.report.bench_table import markdown

TITLE = "How cost scales"
HEADINGS = (
    "text", "nodes", "pass ms", "attention ms", "rest ms", "drafting ms", "cache MB", "drafter MB", "peak MB",
)  # fmt: skip
ATTENTION = "attention"
_NOISE = 1.1  # growth rates within this factor are considered equal

Scaling = Mapping[str, Any]
Round = Mapping[str, Any]


def scaling_table(scaling: Scaling) -> list[tuple[str, ...]]:
    """Return the headings and a line of cells per round."""
    held = {each["prefix"]: each for each in scaling["prefixes"]}
    lines: list[tuple[str, ...]] = [HEADINGS]
    for each in scaling["rounds"]:
        prefix = held[each["prefix"]]
        times = (each[f"{part}_seconds"] for part in ("pass", "attention", "rest", "draft"))
        sizes = (prefix["cache_bytes"], prefix["drafter_bytes"], each["peak_bytes"])
        lines.append(
            (
                str(each["prefix"]),
                str(each["nodes"]),
                *(_number(seconds, 1e3, 2) for seconds in times),
                *(_number(size, 1e-6, 1) for size in sizes),
            )
        )
    return lines


def scaling_markdown(scaling: Scaling) -> list[str]:
    """Return title, table and sentences as paragraphs of Markdown."""
    table = markdown(scaling_table(scaling), name_columns=0)
    return [f"## {TITLE}", table, scaling_method(scaling), *scaling_findings(scaling)]


def scaling_method(scaling: Scaling) -> str:
    """Return a description of the measurement in a few sentences."""
    clock = ", in the thread's own CPU time" if scaling["clock"] == "cpu" else ""
    return (
        "True passes of the model at growing lengths of text and sizes of draft, "
        f"medians of {scaling['repeats']}{clock}. "
        f"Attention: the part of a pass spent in attention. Drafting: the time {scaling['drafter']} took to propose "
        "these nodes and to learn from the pass. Cache: the buffers of keys and values, which double when they are "
        "full. Peak: the most memory held during a pass beyond that of the loaded model, cache and logits included."
    )


def scaling_findings(scaling: Scaling) -> list[str]:
    """Return each part's growth factor from the shortest to the longest text, and the parts that outgrew attention."""
    first, *_, last = scaling["prefixes"]
    span = f"From {first['prefix']} to {last['prefix']} tokens (x{last['prefix'] / first['prefix']:.2f})"
    found = []
    for size in common_sizes(scaling):
        begin, *_, end = rounds_of_size(scaling, size)
        parts = {"pass": "pass", ATTENTION: "attention", "rest of the pass": "rest", "drafting": "draft"}
        if not size:
            del parts["drafting"]  # nothing was drafted
        factors = {name: _factor(begin[f"{part}_seconds"], end[f"{part}_seconds"]) for name, part in parts.items()}
        sentence = f"{span}, time with {node_count(size)}: {_list_factors(factors)}."
        attention = factors[ATTENTION]
        if attention is not None:
            limit = max(attention, 1) * _NOISE
            faster = [name for name, factor in factors.items() if factor is not None and factor > limit]
            sentence += (
                f" Growing faster than attention: {' and '.join(faster)}."
                if faster
                else " Nothing grew faster than attention."
            )
        found.append(sentence)
    begin, *_, end = rounds_of_size(scaling, common_sizes(scaling)[-1])
    memory = {
        "cache": _factor(first["cache_bytes"], last["cache_bytes"]),
        "drafter": _factor(first["drafter_bytes"], last["drafter_bytes"]),
        "peak": _factor(begin["peak_bytes"], end["peak_bytes"]),
    }
    return [*found, f"{span}, memory: {_list_factors(memory)}."]


def scaling_headline(scaling: Scaling) -> str:
    """Return the main result: how the time of a pass over the largest draft grows with the text."""
    first, *_, last = scaling["prefixes"]
    size = common_sizes(scaling)[-1]
    begin, *_, end = rounds_of_size(scaling, size)
    factor = _factor(begin["pass_seconds"], end["pass_seconds"]) or 0.0
    return (
        f"A pass over {node_count(size)} takes {factor:.2f}x as long after {last['prefix']} tokens as after "
        f"{first['prefix']}"
    )


def rounds_of_size(scaling: Scaling, size: int) -> list[Round]:
    """Return the rounds with drafts of `size` nodes."""
    return [each for each in scaling["rounds"] if each["nodes"] == size]


def common_sizes(scaling: Scaling) -> list[int]:
    """Return the draft sizes that were measured at every length."""
    longest = scaling["prefixes"][-1]["prefix"]
    return [each["nodes"] for each in scaling["rounds"] if each["prefix"] == longest]


def node_count(size: int) -> str:
    """Return a number of nodes as text."""
    return f"{size} nodes" if size else "no nodes"


def _list_factors(factors: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} x{factor:.2f}" for name, factor in factors.items() if factor is not None)


def _factor(first: float | None, last: float | None) -> float | None:
    return last / first if first and last is not None else None


def _number(value: float | None, unit: float, digits: int) -> str:
    return "-" if value is None else f"{value * unit:.{digits}f}"
