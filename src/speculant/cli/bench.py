"""`speculant bench`: how fast each method is on a model, against plain decoding in the same process."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.conditions import conditions, labels, sentences
from speculant.cli.env import environment
from speculant.cli.options import Subparsers, add_loading_options, node_count, quieten, whole
from speculant.cli.output import say
from speculant.cli.replay import bar
from speculant.core.errors import FileError, UsageError

if TYPE_CHECKING:
    from speculant.bench.suite.tasks import Task

DESCRIPTION = """\
Time methods against plain decoding in the same process. With --forced the model runs every pass, but the next tokens
come from recorded outputs: the true cost of any model, with random weights from --config if need be, at the true
acceptance of the recorded text. DIR gets result.json, table.md and report.html; called again, an interrupted run goes
on. Memory is empty at the start of each task and kept within it."""

TRIALS, FORCED_TRIALS = 3, 1
NEW_TOKENS = 256


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser("bench", help="time methods on a model", description=DESCRIPTION)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a folder or a hub id; default: the bundled model")
    group = parser.add_argument_group("what is decoded")
    group.add_argument(
        "--tasks", metavar="NAME,...", help="spec-bench, humaneval, gsm8k, mbpp, or .jsonl files of prompts"
    )
    group.add_argument("--forced", nargs="+", metavar="TRACES", help="follow these recorded outputs (token ids)")
    group.add_argument("--config", metavar="FILE", help="with --forced, --growth: random weights of this shape")
    group.add_argument("--data", metavar="DIR", help="where prompts lie; default: $SPECULANT_DATA/prompts")
    group.add_argument("--limit", metavar="N", type=whole(1), help="only the first N items of each task")
    group.add_argument("--growth", action="store_true", help="also, or only: how cost grows, to 8192 tokens, 256 nodes")
    group.add_argument(
        "--max-new-tokens", metavar="N", type=whole(1), help=f"per answer to --tasks; default: {NEW_TOKENS}"
    )
    group = parser.add_argument_group("how")
    group.add_argument(
        "--methods", metavar="NAME,...", default="none,mix",
        help="see `speculant methods`; hf:generate, hf:prompt-lookup, hf:assisted, llamacpp; default: none,mix",
    )  # fmt: skip
    group.add_argument("--assistant", metavar="PATH|ID", help="the model that drafts for hf:assisted")
    group.add_argument("--nodes", metavar="N|auto", type=node_count, help="see `speculant generate --help`")
    group.add_argument("--memory-limit", metavar="MB", type=whole(1), default=256, help="of each method; default: 256")
    group.add_argument("--temperature", metavar="T,...", default="0", help="one or more; default: 0, greedy")
    group.add_argument("--seed", metavar="N", type=whole(0), default=0, help="of sampling; default: 0")
    group.add_argument(
        "--batch", metavar="N,...", default="1", help="requests in a pass, one or more sizes such as 1,4,8; default: 1"
    )
    group.add_argument(
        "--trials", metavar="N", type=whole(1),
        help=f"how often everything is timed; default: {TRIALS}, in forced runs {FORCED_TRIALS}",
    )  # fmt: skip
    group.add_argument(
        "--inflate", metavar="LAYERS[xMLP]",
        help="pad the model to that many layers, and MLPs of that width, without changing its outputs",
    )  # fmt: skip
    group = parser.add_argument_group("model")
    add_loading_options(group)
    group = parser.add_argument_group("output")
    group.add_argument("--out", metavar="DIR", required=True, help="where the results go")
    group.add_argument("--restart", action="store_true", help="forget what an earlier run left in DIR")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check, play, write."""
    check(args)
    quieten()
    from tqdm import tqdm

    from speculant.api.loading import load_model
    from speculant.api.speculator import Speculator
    from speculant.bench.report.bench_table import bench_table
    from speculant.bench.report.replay_table import aligned
    from speculant.bench.report.result_files import write_results
    from speculant.bench.report.scaling_table import scaling_findings, scaling_table
    from speculant.bench.report.summary import measurement_warnings, summary
    from speculant.bench.scaling.measure import lengths_of
    from speculant.bench.suite.rows import RowFile
    from speculant.bench.suite.runner import Runner
    from speculant.bench.suite.tasks import Sampling
    from speculant.bench.systems.llamacpp import LLAMACPP
    from speculant.bench.systems.selection import build_systems, parse_methods
    from speculant.bench.systems.system import PLAIN

    methods = parse_methods(
        args.methods,
        forced=args.forced is not None,
        assisted=args.assistant is not None,
        sampled=any(temperatures(args.temperature)),
    )
    model, tokenizer = target(args)
    lengths = lengths_of(positions_of(model)) if args.growth else []
    assistant = None
    if args.assistant is not None:
        assistant, _ = load_model(args.assistant, dtype=args.dtype, device=args.device, attention=args.attn)
    if args.forced:
        tasks, mapped = forced_tasks(args, model)
    elif args.tasks is None:
        tasks, mapped = [], False
    else:
        tasks, mapped = asked_tasks(args, model, tokenizer), False
    options = {"nodes": args.nodes, "memory_limit": args.memory_limit << 20, "fast": args.fast}
    runner = Runner(
        tasks=tasks,
        systems=build_systems(methods, model, assistant=assistant, **options),
        plain=Speculator.from_transformers(model, method=PLAIN, fast=False),
        samplings=[Sampling(temperature, args.seed) for temperature in temperatures(args.temperature)],
        trials=args.trials or (FORCED_TRIALS if args.forced else TRIALS),
        batches=batches(args.batch),
    )
    settings = conditions(args, runner)
    file = RowFile(Path(args.out), settings, restart=args.restart)
    if file.rows:
        say(f"going on with the run in {args.out}.")
    with tqdm(total=runner.total_items, unit="items", **bar("decoding")) as progress:
        if runner.remaining_items(file):
            runner.warm_up()
        runner.run(file, lambda now: progress.update(now.done - progress.n))
    scaling = measured_scaling(args, model, methods, len(lengths)) if args.growth else None
    rows = summary(file.rows)
    notes = sentences(settings, mapped)
    notes += [note for task in tasks for note in task.notes]
    notes += [f"{note[0].upper()}{note[1:]}" for note in runner.systems[0].notes]
    notes += [note for each in runner.systems if each.name == LLAMACPP for note in each.notes]
    write_results(
        Path(args.out),
        rows,
        labels=labels(settings),
        notes=notes,
        settings=settings,
        environment=environment(model),
        scaling=scaling,
    )
    if rows:
        print(aligned(bench_table(rows)))
    if scaling is not None:
        print("\n".join([aligned(scaling_table(scaling)), *scaling_findings(scaling)]))
    print("\n".join([*notes, *measurement_warnings(rows)]), flush=True)
    return 0


def measured_scaling(args: argparse.Namespace, model: Any, methods: Sequence[str], lengths: int) -> dict[str, Any]:
    """Measure how cost scales, with the first of our own methods that drafts, or `mix`."""
    from tqdm import tqdm

    from speculant.api.speculator import Speculator
    from speculant.bench.scaling.measure import measure_scaling
    from speculant.registry import METHODS

    drafting = next((name for name in methods if name in METHODS and name != "none"), "mix")
    options = {"method": drafting, "memory_limit": args.memory_limit << 20, "fast": args.fast}
    with tqdm(total=lengths, unit="lengths", **bar("growth")) as progress:
        return measure_scaling(lambda: Speculator.from_transformers(model, **options), advance=progress.update)


def check(args: argparse.Namespace) -> None:
    """Say before anything is loaded what cannot be done.

    Raises:
        UsageError, FileError, UnsupportedError: it cannot.
    """
    from speculant.bench.report.extra import check_extra

    check_extra()
    batches(args.batch)
    if args.forced is not None or args.tasks is not None:
        task_names(args)
    if (args.forced is not None and args.tasks is not None) or not (args.forced or args.tasks or args.growth):
        raise UsageError("name what to decode: either --tasks, or --forced and recorded outputs; or --growth.")
    if args.config is not None and args.forced is None and (args.tasks is not None or not args.growth):
        raise UsageError("random weights have nothing to say: --config needs --forced TRACES, or --growth.")
    if args.config is not None and args.model is not None:
        raise UsageError("MODEL and --config both name the model; leave one out.")
    ignored = [name for name in ("max_new_tokens", "data") if args.forced and getattr(args, name) is not None]
    if ignored:
        raise UsageError(f"a forced run takes texts and lengths from its recordings; leave {flags(ignored)} out.")
    if args.assistant is not None and "hf:assisted" not in args.methods:
        raise UsageError("--assistant drafts for hf:assisted only, which is not among --methods.")
    if Path(args.out).is_file():
        raise FileError(f"{args.out} is a file; name a folder by --out.")
    if args.forced and any(temperatures(args.temperature)):
        raise UsageError("a forced run follows recorded outputs and samples nothing; leave --temperature out.")


def flags(names: Sequence[str]) -> str:
    """Return options as they are typed."""
    return " and ".join(f"--{name.replace('_', '-')}" for name in names)


def temperatures(text: str) -> list[float]:
    """Return the numbers of "T,...".

    Raises:
        UsageError: they are none, or below 0.
    """
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UsageError(f"--temperature takes numbers with commas between them, not '{text}'.") from error
    if not found or min(found) < 0:
        raise UsageError(f"--temperature takes numbers of 0 or more, not '{text}'.")
    return list(dict.fromkeys(found))


def batches(text: str) -> list[int]:
    """Return the numbers of "N,...".

    Raises:
        UsageError: they are none, or below 1.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and int(part) for part in parts):
        raise UsageError(f"--batch takes numbers of 1 or more with commas between them, not '{text}'.")
    return list(dict.fromkeys(map(int, parts)))


def target(args: argparse.Namespace) -> tuple[Any, Any]:
    """Load or make the model that is asked for, and its tokenizer or None."""
    from speculant.api.loading import load_model
    from speculant.bench.systems.inflate import inflate
    from speculant.bench.systems.random_weights import random_model

    options = {"dtype": args.dtype, "device": args.device, "attention": args.attn}
    if args.config is not None:
        model, tokenizer = random_model(Path(args.config), **options), None
    else:
        model, tokenizer = load_model(args.model, **options)
    if args.inflate is not None:
        layers, _, mlp = args.inflate.partition("x")
        if not layers.isdigit() or (mlp and not mlp.isdigit()):
            raise UsageError(f"--inflate takes LAYERS or LAYERSxMLP, such as 24 or 24x8192, not '{args.inflate}'.")
        model = inflate(model, layers=int(layers), mlp=int(mlp) if mlp else None)
    return model, tokenizer


def positions_of(model: Any) -> int | None:
    """Return how many positions a model has."""
    found: int | None = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return found


def forced_tasks(args: argparse.Namespace, model: Any) -> tuple[list[Task], bool]:
    """Return a task per file of recorded outputs, and whether ids were mapped."""
    from speculant.bench.replay.traces import read_recordings
    from speculant.bench.suite.tasks import recorded_task
    from speculant.bench.systems.forced import fit_vocabulary

    paths = [Path(path) for path in dict.fromkeys(args.forced)]
    files = [list(read_recordings(path))[: args.limit] for path in paths]
    for path, file in zip(paths, files, strict=True):
        if not file:
            raise FileError(f"{path} holds no recorded output.")
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    fitted, mapped = fit_vocabulary([each for file in files for each in file], vocabulary)
    tasks, begin = [], 0
    for path, file in zip(paths, files, strict=True):
        tasks.append(recorded_task(path.stem, fitted[begin : begin + len(file)], positions_of(model)))
        begin += len(file)
    return tasks, mapped


def asked_tasks(args: argparse.Namespace, model: Any, tokenizer: Any) -> list[Task]:
    """Return a task per suite."""
    from speculant.bench.suite.suites import read_suite
    from speculant.bench.suite.tasks import prompt_task

    folder = None if args.data is None else Path(args.data)
    return [
        prompt_task(
            Path(name).stem if name.endswith(".jsonl") else name,
            read_suite(name, folder)[: args.limit],
            tokenizer,
            positions=positions_of(model),
            max_new_tokens=args.max_new_tokens or NEW_TOKENS,
        )
        for name in task_names(args)
    ]


def task_names(args: argparse.Namespace) -> list[str]:
    """Return what --tasks or --forced name.

    Raises:
        UsageError: nothing, or two of the same name.
    """
    given = args.forced or [name.strip() for name in args.tasks.split(",") if name.strip()]
    names = list(dict.fromkeys(given))
    called = [Path(name).stem for name in names]
    if not names or len(set(called)) < len(called):
        raise UsageError("name at least one task, and files that are called differently: results go by their names.")
    return names
