"""The results of a replay: rows of figures, conditions, the table, the JSON and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.replay_settings import SHUFFLED, ReplayOptions, Trace
from speculant.cli.settings import settings_json, settings_sentences
from speculant.cli.terminal import say, waiting
from speculant.options.drafting import AUTOMATIC

if TYPE_CHECKING:
    from speculant.bench.replay.player import ReplayResult
    from speculant.bench.replay.runs import Run
    from speculant.sizing.step_cost import StepCost


class Results:
    """The results of the runs, with the recorded acceptance of other drafters from the traces."""

    def __init__(
        self, traces: Sequence[Trace], runs: Sequence[Run], results: Sequence[ReplayResult], cost: StepCost | None
    ) -> None:
        from speculant.bench.replay.metrics import run_metrics
        from speculant.bench.replay.recorded import list_recorded_names, match_recorded_lengths, replay_recorded

        self.traces = traces
        self.rows: list[dict[str, Any]] = []
        self.results: list[tuple[Run, ReplayResult] | None] = []  # by row; None for recorded acceptance
        lengths = match_recorded_lengths([run.nodes for run in runs if run.chain and isinstance(run.nodes, int)])
        for trace in traces:
            for run, each in zip(runs, results, strict=True):
                if run.file == trace.name:
                    self.rows.append(run_metrics(run.file, run.label, run.nodes, each, cost, chain=run.chain))
                    self.results.append((run, each))
            for name in list_recorded_names(trace.recordings):
                for length in lengths:
                    recorded = replay_recorded(name, trace.recordings, drafts=length)
                    self.rows.append(run_metrics(trace.name, f"recorded:{name}", length, recorded, chain=True))
                    self.results.append(None)

    @property
    def notes(self) -> list[str]:
        """Remarks needed to compare recorded acceptance with the other rows, one sentence each."""
        recorded = list(
            dict.fromkeys(row["method"] for row, each in zip(self.rows, self.results, strict=True) if each is None)
        )
        if not recorded:
            return []
        found = [f"{' and '.join(recorded)}: chains recorded with the traces, in other runs."]
        if not any(
            row["shape"] == "chain" for row, each in zip(self.rows, self.results, strict=True) if each is not None
        ):
            found.append("The other drafts are trees; --chain --nodes 20 compares chains with chains.")
        return found

    def page(self, notes: Sequence[str], tokenizer: Any) -> str:
        """Return the page, with an excerpt of each file's last request."""
        from speculant.bench.report.excerpts import last_excerpt
        from speculant.bench.report.replay_page import replay_page
        from speculant.bench.report.replay_table import tell_apart

        excerpts = {
            (row["file"], row["method"]): last_excerpt(played[1], played[0].recordings, tokenizer)
            for row, played in zip(tell_apart(self.rows), self.results, strict=True)
            if played is not None
        }
        return replay_page(self.rows, excerpts, notes, token_ids=tokenizer is None)


def conditions(asked: ReplayOptions, chosen: Mapping[str, Any], jobs: int, left_out: int) -> dict[str, Any]:
    """Return the conditions of the replay.

    Args:
        asked: the options.
        chosen: settings of drafters, by method.
        jobs: number of processes.
        left_out: number of unusable rows.
    """
    return {
        "method_settings": settings_json(chosen),
        "shapes": list(asked.shapes),
        "unite": asked.unite or None,
        "nodes": list(asked.nodes),
        "max_depth": asked.drafting.max_depth,
        "keep_memory": asked.keep_memory,
        "memory_limit_mb": asked.drafting.memory_limit / (1 << 20),
        "bases": [Path(path).name for path in asked.drafting.base],
        "corpora": [Path(path).name for path in asked.corpora],
        "order": asked.order,
        "seed": asked.seed or 0 if asked.order == SHUFFLED else None,
        "limit": asked.limit,
        "jobs": jobs,
        "left_out": left_out,
    }


def sentences(settings: dict[str, Any]) -> list[str]:
    """Return the conditions as sentences."""
    kept = "kept over the requests of a file" if settings["keep_memory"] else "empty for every request"
    order = "in the file's order" if settings["seed"] is None else f"shuffled by seed {settings['seed']}"
    *maximum, last = [str(size) for size in settings["nodes"] if size != AUTOMATIC] or [""]
    numbers = f"{', '.join(maximum)} or {last}" if maximum else last
    sizes = [f"up to {numbers} tokens"] if last else []
    if AUTOMATIC in settings["nodes"]:
        sizes.append("the number of tokens that decoding would choose")
    depth = f", up to {settings['max_depth']} deep" if settings["max_depth"] is not None else ""
    shapes = " and ".join(f"{shape}s" for shape in settings["shapes"])
    found = [f"Drafts are {shapes} of {' or of '.join(sizes)}{depth}, memory {kept}, requests {order}."]
    if settings["limit"] is not None:
        found.append(f"Only the first {settings['limit']} requests of each file.")
    found += settings_sentences(settings["method_settings"])
    if settings["corpora"]:
        found.append(f"Methods that can read them started from {' and '.join(settings['corpora'])}.")
    if settings["bases"]:
        found.append(f"Frozen base of the methods that use one: {' and '.join(settings['bases'])}.")
    if settings["jobs"] > 1:
        found.append(f"Times were taken in {settings['jobs']} parallel processes.")
    if settings["left_out"]:
        found.append(f"Rows left out, since they could not be used: {settings['left_out']}.")
    return found


def show(asked: ReplayOptions, results: Results, settings: dict[str, Any], tokenizer: Any) -> None:
    """Print the table and write the requested files."""
    from speculant.bench.report.replay_table import LEGEND, NAME_COLUMNS, replay_table
    from speculant.cli.env import environment
    from speculant.cli.files import write_json, write_text
    from speculant.cli.terminal import print_table

    notes = [*sentences(settings), *results.notes]
    if asked.json == "-":
        say("\n".join(notes))
    else:
        print_table(replay_table(results.rows, categories=asked.by_category), names=NAME_COLUMNS)
        print("\n".join([LEGEND, *notes]), flush=True)
    if asked.json is not None:
        write_json(asked.json, {"rows": results.rows, "settings": settings, "environment": environment()})
    if asked.html is not None:
        with waiting("drawing the charts"):
            page = results.page(notes, tokenizer)
        write_text(asked.html, page)
