"""`speculant train`: heads that draft for a model, trained on what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from speculant.cli.commands import Command, Group
from speculant.cli.options import AttentionOption, DeviceOption, DtypeOption, Loading, ModelOption, ThreadsOption
from speculant.cli.values import byte_count, nonnegative, positive, share, whole
from speculant.training.kinds import KINDS, find_kind

HELP = """\
Train heads that draft for a model. First let the model write texts, with `data`; then train a head on them."""

EXAMPLES = """
speculant train data --model your/model --prompts chats.jsonl --out texts
speculant train eagle --model your/model --data texts --out head
speculant generate "Why?" --model your/model --head head
"""

HEAD_HELP = """\
Train a head of kind {name} for a model ({source}).

Ends after --steps or --minutes with the weights that were accepted most on held-out texts, in DIR: the head in its
public layout, a model card, and training.json. Ctrl-C saves; the same command with --resume goes on. With --steps, a
training that was interrupted gives the same head as one that was not."""

HEAD_EXAMPLES = """
speculant train {name} --model your/model --data texts --out head
speculant train {name} --model your/model --data texts --out head --resume
torchrun --nproc-per-node 8 -m speculant train {name} --model your/model --data texts --out head
"""


class TrainCommand(Command):
    """The command, whose --data takes all values up to the next option."""

    lists = ("--data",)


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(cls=Group, help=HELP, epilog=EXAMPLES, rich_markup_mode=None)
    group.callback()(lambda: None)
    for kind in KINDS:
        group.command(
            kind.name,
            cls=TrainCommand,
            help=HEAD_HELP.format(name=kind.name, source=kind.source),
            short_help=f"train a head of kind {kind.name}",
            epilog=HEAD_EXAMPLES.format(name=kind.name),
        )(train)
    app.add_typer(group, name="train")


def train(
    context: typer.Context,
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            metavar="PATH...",
            help="folders of `train data`, .txt or .jsonl files ({text} or {messages})",
            rich_help_panel="Files",
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="the folder that gets the head", rich_help_panel="Files")
    ],
    model: ModelOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the training in DIR", rich_help_panel="Files")
    ] = False,
    init: Annotated[
        str | None,
        typer.Option(
            "--init",
            metavar="PATH|ID",
            help="begin with this head; default: new weights",
            rich_help_panel="Files",
        ),
    ] = None,
    cache: Annotated[
        int,
        typer.Option(
            "--cache",
            metavar="BYTES",
            parser=byte_count,
            help="disk that the target's hidden states may take, as in 2GB; default: 0, computed every time",
            rich_help_panel="Files",
        ),
    ] = 0,
    cache_dir: Annotated[
        str | None,
        typer.Option(
            "--cache-dir",
            metavar="DIR",
            help="where they are kept for other trainings; default: in --out until the end",
            rich_help_panel="Files",
        ),
    ] = None,
    checkpoint_steps: Annotated[
        int | None,
        typer.Option(
            "--checkpoint-steps",
            metavar="N",
            parser=whole(1),
            help="steps between checkpoints; default: by the clock",
            rich_help_panel="Files",
        ),
    ] = None,
    checkpoint_minutes: Annotated[
        float,
        typer.Option(
            "--checkpoint-minutes",
            metavar="M",
            parser=positive,
            help="minutes between checkpoints; default: 5",
            rich_help_panel="Files",
        ),
    ] = 5.0,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="N",
            parser=whole(1),
            help="steps to train; default: 5 passes over the data, without --minutes",
            rich_help_panel="Training",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            metavar="M",
            parser=positive,
            help="minutes to train, at most; results are repeatable by --steps alone",
            rich_help_panel="Training",
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            "--lr",
            metavar="RATE",
            parser=positive,
            help="learning rate; default: the kind's, about 0.001",
            rich_help_panel="Training",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            "--loss",
            metavar="LOSS",
            help="ce, kl, rkl, jsd, tvd, top, or a weighted sum as in kl+0.1ce; default: the kind's",
            rich_help_panel="Training",
        ),
    ] = None,
    feature_weight: Annotated[
        float | None,
        typer.Option(
            "--feature-weight",
            metavar="W",
            parser=nonnegative,
            help="of the distance of hidden states, for kinds that predict them",
            rich_help_panel="Training",
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth",
            metavar="N",
            parser=whole(1, 64),
            help="drafted tokens that are trained; default: the kind's",
            rich_help_panel="Training",
        ),
    ] = None,
    depth_from: Annotated[
        float,
        typer.Option(
            "--depth-from",
            metavar="SHARE",
            parser=nonnegative,
            help="train the first token alone until this share of the training; default: 0",
            rich_help_panel="Training",
        ),
    ] = 0.0,
    decay: Annotated[
        float | None,
        typer.Option(
            "--decay",
            metavar="D",
            parser=share,
            help="weights of the losses by depth: D^(depth - 1); default: the kind's, 0.8",
            rich_help_panel="Training",
        ),
    ] = None,
    optimizer: Annotated[
        str, typer.Option("--optimizer", metavar="NAME", help="adamw (default) or muon", rich_help_panel="Training")
    ] = "adamw",
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            metavar="NAME",
            help="of the learning rate: linear (default), cosine or constant",
            rich_help_panel="Training",
        ),
    ] = "linear",
    warmup: Annotated[
        int,
        typer.Option(
            "--warmup",
            metavar="N",
            parser=whole(0),
            help="steps over which the rate rises; default: 50",
            rich_help_panel="Training",
        ),
    ] = 50,
    weight_decay: Annotated[
        float,
        typer.Option(
            "--weight-decay",
            metavar="W",
            parser=nonnegative,
            help="of matrices; default: 0",
            rich_help_panel="Training",
        ),
    ] = 0.0,
    clip: Annotated[
        float,
        typer.Option(
            "--clip",
            metavar="NORM",
            parser=nonnegative,
            help="of gradients; 0 for none; default: 1",
            rich_help_panel="Training",
        ),
    ] = 1.0,
    texts: Annotated[
        int,
        typer.Option(
            "--texts", metavar="N", parser=whole(1), help="of a batch; default: 8", rich_help_panel="Training"
        ),
    ] = 8,
    anchors: Annotated[
        int,
        typer.Option(
            "--anchors",
            metavar="N",
            parser=whole(1),
            help="positions of a text that are trained, at most; default: 32",
            rich_help_panel="Training",
        ),
    ] = 32,
    accumulate: Annotated[
        int,
        typer.Option(
            "--accumulate",
            metavar="N",
            parser=whole(1),
            help="batches of a step; default: 1",
            rich_help_panel="Training",
        ),
    ] = 1,
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            metavar="N",
            parser=whole(8),
            help="tokens of a text that are used; default: the model's positions",
            rich_help_panel="Training",
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            metavar="NAME",
            help="of the head's arithmetic: float32 (default) or bfloat16; weights stay float32",
            rich_help_panel="Training",
        ),
    ] = "float32",
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", parser=whole(0), help="default: 0", rich_help_panel="Training")
    ] = 0,
    evaluate_steps: Annotated[
        int,
        typer.Option(
            "--evaluate-steps",
            metavar="N",
            parser=whole(1),
            help="steps between measurements of held-out acceptance; default: 200",
            rich_help_panel="Training",
        ),
    ] = 200,
    held_out: Annotated[
        int,
        typer.Option(
            "--held-out",
            metavar="N",
            parser=whole(1),
            help="texts to measure on, a tenth at most; default: 128",
            rich_help_panel="Training",
        ),
    ] = 128,
    patience: Annotated[
        int,
        typer.Option(
            "--patience",
            metavar="N",
            parser=whole(0),
            help="end after so many measurements without gain; default: 0, never",
            rich_help_panel="Training",
        ),
    ] = 0,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    attention: AttentionOption = None,
    threads: ThreadsOption = None,
) -> int:
    """Load, train, write."""
    from speculant.cli.loading import load, model_title
    from speculant.cli.terminal import say
    from speculant.cli.train_progress import shown
    from speculant.training.output import check_output, finished

    kind = find_kind(str(context.info_name))
    place = Path(out)
    if not (resume and finished(place)):
        check_output(place, resume=resume)  # before the model is loaded
    options: dict[str, Any] = {
        "loss": loss or kind.loss,
        "feature_weight": kind.feature_weight if feature_weight is None else feature_weight,
        "depth": depth or kind.depth,
        "decay": decay or kind.decay,
        "lr": lr or kind.lr,
    }
    from speculant.training.run import Files, train_head
    from speculant.training.settings import TrainSettings
    from speculant.training.workers import launched_device

    settings = TrainSettings(
        **options,
        steps=steps,
        minutes=minutes,
        depth_from=depth_from,
        optimizer=optimizer,
        schedule=schedule,
        warmup=warmup,
        weight_decay=weight_decay,
        clip=clip,
        texts=texts,
        anchors=anchors,
        accumulate=accumulate,
        precision=precision,
        seed=seed,
        evaluate_every=evaluate_steps,
        patience=patience,
        held_out=held_out,
    )
    device = device or launched_device()
    loading = Loading(model=model, dtype=dtype, device=device, attention=attention, threads=threads)
    target, tokenizer, used = load(loading)
    from speculant.training.fingerprint import identify
    from speculant.training.reading import read_data

    identity = identify(target, tokenizer, name=model_title(model))
    texts_read = read_data(data, tokenizer, identity)
    for note in texts_read.notes:
        say(f"warning: {note}")
    say(f"{len(texts_read.texts)} texts, {texts_read.texts.tokens} tokens; threads: {used}.")
    files = Files(
        out=place,
        cache=cache,
        cache_folder=None if cache_dir is None else Path(cache_dir),
        resume=resume,
        init=init,
        checkpoint_steps=checkpoint_steps,
        checkpoint_minutes=checkpoint_minutes,
    )
    try:
        with shown(settings) as report:
            record = train_head(
                kind, target, texts_read, identity, settings, files, longest=length, report=report, note=say
            )
    except KeyboardInterrupt:
        say(f"interrupted; the training is saved in {out}. The same command with --resume goes on.")
        raise
    if record is not None:
        best = record["best"]
        print(f"head        {out}")
        print(f"best        step {best['step']} of {record['steps']}, {record['seconds'] / 60:.1f} minutes")
        print(f"acceptance  {' '.join(format(rate, '.3f') for rate in best['agreement'])} by depth, greedy")
        print(f"chain       {best['greedy']:.2f} tokens a round greedy, {best['sampled']:.2f} sampled (estimated)")
    return 0
