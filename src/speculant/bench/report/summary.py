"""Figures of a benchmark, as plain numbers: what the JSON, the table and the page are made of.

Speeds are all tokens over all seconds of a trial, never means of per-request speeds; of several trials the median is
given, with the least and the most. A speed-up compares a method with plain decoding of the same trial and batch size,
`speedup_over_one` with plain decoding of one request at a time, if that was played. Counts are of one trial. MAT counts
the tokens of rounds, those that the prompts' passes gave belong to none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from speculant.bench.suite.rows import Row
from speculant.bench.systems.system import PLAIN

OVERALL = "overall"


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the figures per batch size, temperature, task and method; over all tasks too where there are several."""
    found = []
    for batch, temperature in dict.fromkeys((row.batch, row.temperature) for row in rows):
        chosen = [row for row in rows if (row.batch, row.temperature) == (batch, temperature)]
        tasks = list(dict.fromkeys(row.task for row in chosen))
        for task in [*tasks, *([OVERALL] if len(tasks) > 1 else [])]:
            found += _task(task, [row for row in chosen if task in (row.task, OVERALL)])
    alone = {
        (row["task"], row["temperature"]): row["tokens_per_second"]
        for row in found
        if row["batch"] == 1 and row["method"] == PLAIN
    }
    for row in found:
        base = alone.get((row["task"], row["temperature"]))
        row["speedup_over_one"] = row["tokens_per_second"] / base if base and row["tokens_per_second"] else None
    return found


def _task(task: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    methods: dict[str, list[Row]] = {}
    for row in rows:
        methods.setdefault(row.method, []).append(row)
    return [_figures(task, method, chosen, methods[PLAIN]) for method, chosen in methods.items()]


def _figures(task: str, method: str, rows: Sequence[Row], plain: Sequence[Row]) -> dict[str, Any]:
    trials = sorted({row.trial for row in rows})
    ours, theirs = ([[row for row in each if row.trial == trial] for trial in trials] for each in (rows, plain))
    one = ours[0]
    tokens, rounds = sum(row.tokens for row in one), sum(row.rounds for row in one)
    in_rounds = tokens - sum(row.prefill_tokens for row in one)
    compared = [row.identical for row in rows if row.identical is not None]
    return {
        "method": method,
        "task": task,
        "temperature": rows[0].temperature,
        "batch": rows[0].batch,
        "requests": sum(row.requests for row in one),
        "trials": len(trials),
        "tokens": tokens,
        "rounds": rounds,
        "mat": _mat(one),
        **_spread("tokens_per_second", [_speed(each) for each in ours]),
        **_spread("decode_tokens_per_second", [_decode_speed(each) for each in ours]),
        **_spread("speedup", _ratios(_speed, ours, theirs)),
        **_spread("decode_speedup", _ratios(_decode_speed, ours, theirs)),
        "request_speedup_quartiles": _quartiles(rows, plain),
        "seconds": sum(row.seconds for row in rows) / len(trials),
        "prefill_seconds": sum(row.prefill_seconds for row in rows) / len(trials),
        "time_share": time_share(rows),
        "drafted": _sum([row.drafted for row in one]),
        "accepted": in_rounds - rounds,
        "acceptance_by_depth": _acceptance(one),
        "by_depth": _by_depth(one),
        "memory_bytes": _most([row.memory_bytes for row in rows]),
        "device_bytes": _most([row.device_bytes for row in rows]),
        "compared": len(compared),
        "identical": sum(compared),
        "categories": _categories(ours, theirs),
        "divergences": [
            {
                "category": row.category,
                "item": row.item,
                "turn": row.turn,
                "trial": row.trial,
                "position": row.divergence.position,
                "margin": row.divergence.margin,
                "near_tie": row.divergence.near_tie,
            }
            for row in rows
            if row.divergence is not None
        ],
    }


def _categories(ours: Sequence[Sequence[Row]], theirs: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """Return the main figures of each category, in order of appearance."""
    found = []
    for category in dict.fromkeys(row.category for row in ours[0]):
        one, other = ([[row for row in rows if row.category == category] for rows in each] for each in (ours, theirs))
        figures = {
            "category": category,
            "requests": sum(row.requests for row in one[0]),
            "tokens": sum(row.tokens for row in one[0]),
            "mat": _mat(one[0]),
            **_spread("tokens_per_second", [_speed(each) for each in one]),
            **_spread("speedup", _ratios(_speed, one, other)),
        }
        found.append(figures)
    return found


def _mat(rows: Sequence[Row]) -> float:
    rounds = sum(row.rounds for row in rows)
    return sum(row.tokens - row.prefill_tokens for row in rows) / rounds if rounds else 0.0


def time_share(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the shares of the time after prefill; None where a method does not say."""
    whole = sum(row.seconds - row.prefill_seconds for row in rows)
    draft, target = _sum([row.draft_seconds for row in rows]), _sum([row.target_seconds for row in rows])
    if draft is None or target is None or whole <= 0:
        return {"draft": None, "target": None, "rest": None}
    return {"draft": draft / whole, "target": target / whole, "rest": max(0.0, 1 - (draft + target) / whole)}


def _by_depth(rows: Sequence[Row]) -> list[dict[str, int | None]]:
    deepest = max(len(row.accepted_by_depth) for row in rows)
    said = all(row.offered_by_depth is not None for row in rows)
    if said:
        deepest = max(deepest, *(len(row.offered_by_depth or ()) for row in rows), 0)
    return [
        {
            "depth": depth + 1,
            "offered": sum(_at(row.offered_by_depth or (), depth) for row in rows) if said else None,
            "accepted": sum(_at(row.accepted_by_depth, depth) for row in rows),
        }
        for depth in range(deepest)
    ]


def _acceptance(rows: Sequence[Row]) -> list[float] | None:
    """Return, as `Stats` does, the share of the rounds with a draft at a depth in which it was right there."""
    depths = [(each["accepted"], each["offered"]) for each in _by_depth(rows)]
    return None if any(offered is None for _, offered in depths) else [a / o for a, o in depths if a is not None and o]


def _at(counts: Sequence[int], depth: int) -> int:
    return counts[depth] if depth < len(counts) else 0


def _speed(rows: Sequence[Row]) -> float:
    seconds = sum(row.seconds for row in rows)
    return sum(row.tokens for row in rows) / seconds if seconds else 0.0


def _decode_speed(rows: Sequence[Row]) -> float:
    seconds = sum(row.seconds - row.prefill_seconds for row in rows)
    return sum(row.tokens - row.prefill_tokens for row in rows) / seconds if seconds else 0.0


def _ratios(
    speed: Callable[[Sequence[Row]], float], ours: Sequence[Sequence[Row]], theirs: Sequence[Sequence[Row]]
) -> list[float]:
    pairs = [(speed(one), speed(other)) for one, other in zip(ours, theirs, strict=True)]
    return [one / other for one, other in pairs if other]


def _spread(name: str, values: Sequence[float]) -> dict[str, Any]:
    spread = [min(values), max(values)] if len(values) > 1 else None
    return {name: median(values) if values else None, f"{name}_spread": spread}


def _quartiles(rows: Sequence[Row], plain: Sequence[Row]) -> list[float]:
    """Return the quartiles of the speed-up over requests and trials: how much it depends on the text."""
    base = {(row.task, row.item, row.turn, row.trial): row.seconds / max(1, row.tokens) for row in plain}
    ratios = sorted(
        base[row.task, row.item, row.turn, row.trial] * row.tokens / row.seconds for row in rows if row.seconds
    )
    last = len(ratios) - 1
    return [ratios[round(last * part)] for part in (0.25, 0.5, 0.75)] if ratios else []


def _sum(values: Sequence[float | int | None]) -> Any:
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
