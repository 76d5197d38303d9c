"""The figures of a benchmark as plain numbers, for the JSON, the table and the page.

A speed is the total tokens over the total seconds of a trial, never a mean of per-request speeds; for several trials it
is the median, with minimum and maximum, and likewise for speed-ups and MAT. A speed-up compares a method with plain
decoding in the same trial and batch size; `speedup_over_one` compares it with plain decoding of one request at a time,
if that was run. Counts are for one trial. MAT excludes the token from each prompt's pass, which belongs to no round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from speculant.bench.report.noise import beyond_drafts, unsteady
from speculant.bench.suite.rows import PLAIN, ResultRow
from speculant.core.stats import compute_mat
from speculant.registry import METHODS

OVERALL = "overall"
SHORT_TRIAL_SECONDS = 30


def summary(rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """Return a row of figures per batch size, temperature, task and method, and over all tasks if there are several."""
    found: list[dict[str, Any]] = []
    for batch, temperature in dict.fromkeys((row.batch, row.temperature) for row in rows):
        chosen = [row for row in rows if (row.batch, row.temperature) == (batch, temperature)]
        tasks = list(dict.fromkeys(row.task for row in chosen))
        for task in [*tasks, *([OVERALL] if len(tasks) > 1 else [])]:
            found += _task_rows(task, [row for row in chosen if task in (row.task, OVERALL)])
    alone = {
        (row["task"], row["temperature"]): row["tokens_per_second"]
        for row in found
        if row["batch"] == 1 and row["method"] == PLAIN
    }
    for row in found:
        base = alone.get((row["task"], row["temperature"]))
        row["speedup_over_one"] = row["tokens_per_second"] / base if base and row["tokens_per_second"] else None
    return found


def measurement_warnings(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return why speed-ups may be noise: disagreeing trials, more than drafts can gain, or a single short trial.

    Args:
        rows: rows of `summary`.
    """
    found = []
    for row in rows:
        if doubt := noise(row, rows):
            batch = "" if row["batch"] == 1 else f", batch {row['batch']}"
            found.append(f"{row['task']}, {row['method']}{batch}: {doubt}.")
    seconds = [row["seconds"] for row in rows if row["trials"] < 2 and row["task"] != OVERALL]
    if not seconds or min(seconds) >= SHORT_TRIAL_SECONDS:
        return found
    shortest = f"the shortest of {min(seconds):.1f} s"
    return [*found, f"Speed-ups rest on one trial, {shortest}, so they may be noise. Use --trials 3 or more items."]


def noise(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Return why a row's speed-up does not show what drafts gain; empty if it does.

    Args:
        row: a row of `summary`; the result is empty for plain decoding.
        rows: all rows.
    """
    if row["method"] == PLAIN:
        return ""
    same = ("task", "temperature", "batch")
    plain = next(each for each in rows if each["method"] == PLAIN and all(each[name] == row[name] for name in same))
    spread, speeds = row["speedup_spread"] or (), plain["tokens_per_second_spread"] or ()
    if doubt := unsteady(spread, speeds, pairs="trials"):
        return doubt
    own_passes = row["method"] in METHODS and row["batch"] == 1
    return beyond_drafts(row["speedup"], row["mat"]) if own_passes else ""


def _task_rows(task: str, rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    by_method: dict[str, list[ResultRow]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    return [_figures(task, method, chosen, by_method[PLAIN]) for method, chosen in by_method.items()]


def _figures(task: str, method: str, rows: Sequence[ResultRow], plain: Sequence[ResultRow]) -> dict[str, Any]:
    trials = sorted({row.trial for row in rows})
    own, base = ([[row for row in each if row.trial == trial] for trial in trials] for each in (rows, plain))
    one = own[0]
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
        **_spread("mat", [_mat(each) for each in own]),
        **_spread("tokens_per_second", [_speed(each) for each in own]),
        **_spread("decode_tokens_per_second", [_decode_speed(each) for each in own]),
        **_spread("speedup", _ratios(_speed, own, base)),
        **_spread("decode_speedup", _ratios(_decode_speed, own, base)),
        "request_speedup_quartiles": _quartiles(rows, plain),
        "seconds": sum(row.seconds for row in rows) / len(trials),
        "prefill_seconds": sum(row.prefill_seconds for row in rows) / len(trials),
        "time_share": time_share(rows),
        "drafted": _sum([row.drafted for row in one]),
        "accepted": in_rounds - rounds,
        "acceptance_by_depth": _acceptance(one),
        "by_depth": _by_depth(one),
        "memory_bytes": _maximum([row.memory_bytes for row in rows]),
        "device_bytes": _maximum([row.device_bytes for row in rows]),
        "compared": len(compared),
        "identical": sum(compared),
        "categories": _categories(own, base),
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


def _categories(own: Sequence[Sequence[ResultRow]], base: Sequence[Sequence[ResultRow]]) -> list[dict[str, Any]]:
    """Return the main figures per category, in order of appearance."""
    found = []
    for category in dict.fromkeys(row.category for row in own[0]):
        one, other = ([[row for row in rows if row.category == category] for rows in each] for each in (own, base))
        figures = {
            "category": category,
            "requests": sum(row.requests for row in one[0]),
            "tokens": sum(row.tokens for row in one[0]),
            "mat": median(_mat(each) for each in one),
            **_spread("tokens_per_second", [_speed(each) for each in one]),
            **_spread("speedup", _ratios(_speed, one, other)),
        }
        found.append(figures)
    return found


def _mat(rows: Sequence[ResultRow]) -> float:
    rounds = sum(row.rounds for row in rows)
    return compute_mat(sum(row.tokens for row in rows), rounds, texts=sum(row.prefill_tokens for row in rows))


def time_share(rows: Sequence[ResultRow]) -> dict[str, float | None]:
    """Return the shares of the time after prefill; None if a method does not report them."""
    total = sum(row.seconds - row.prefill_seconds for row in rows)
    draft, target = _sum([row.draft_seconds for row in rows]), _sum([row.target_seconds for row in rows])
    if draft is None or target is None or total <= 0:
        return {"draft": None, "target": None, "rest": None}
    return {"draft": draft / total, "target": target / total, "rest": max(0.0, 1 - (draft + target) / total)}


def _by_depth(rows: Sequence[ResultRow]) -> list[dict[str, int | None]]:
    deepest = max(len(row.accepted_by_depth) for row in rows)
    known = all(row.offered_by_depth is not None for row in rows)
    if known:
        deepest = max(deepest, *(len(row.offered_by_depth or ()) for row in rows), 0)
    return [
        {
            "depth": depth + 1,
            "offered": sum(_at(row.offered_by_depth or (), depth) for row in rows) if known else None,
            "accepted": sum(_at(row.accepted_by_depth, depth) for row in rows),
        }
        for depth in range(deepest)
    ]


def _acceptance(rows: Sequence[ResultRow]) -> list[float] | None:
    """Return, per depth, the share of accepted drafts among the rounds with a draft to that depth."""
    depths = [(each["accepted"], each["offered"]) for each in _by_depth(rows)]
    return None if any(offered is None for _, offered in depths) else [a / o for a, o in depths if a is not None and o]


def _at(counts: Sequence[int], depth: int) -> int:
    return counts[depth] if depth < len(counts) else 0


def _speed(rows: Sequence[ResultRow]) -> float:
    seconds = sum(row.seconds for row in rows)
    return sum(row.tokens for row in rows) / seconds if seconds else 0.0


def _decode_speed(rows: Sequence[ResultRow]) -> float:
    seconds = sum(row.seconds - row.prefill_seconds for row in rows)
    return sum(row.tokens - row.prefill_tokens for row in rows) / seconds if seconds else 0.0


def _ratios(
    speed: Callable[[Sequence[ResultRow]], float],
    own: Sequence[Sequence[ResultRow]],
    base: Sequence[Sequence[ResultRow]],
) -> list[float]:
    pairs = [(speed(one), speed(other)) for one, other in zip(own, base, strict=True)]
    return [one / other for one, other in pairs if other]


def _spread(name: str, values: Sequence[float]) -> dict[str, Any]:
    spread = [min(values), max(values)] if len(values) > 1 else None
    return {name: median(values) if values else None, f"{name}_spread": spread}


def _quartiles(rows: Sequence[ResultRow], plain: Sequence[ResultRow]) -> list[float]:
    """Return the quartiles of the speed-up over requests and trials, which show its dependence on the text."""
    base = {(row.task, row.item, row.turn, row.trial): row.seconds / max(1, row.tokens) for row in plain}
    ratios = sorted(
        base[row.task, row.item, row.turn, row.trial] * row.tokens / row.seconds for row in rows if row.seconds
    )
    last = len(ratios) - 1
    return [ratios[round(last * part)] for part in (0.25, 0.5, 0.75)] if ratios else []


def _sum(values: Sequence[float | int | None]) -> Any:
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)


def _maximum(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
