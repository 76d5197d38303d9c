"""`speculant train`: trains heads and draft models on texts that their target writes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import typer

from speculant.cli.binding import Take, bind, parse
from speculant.cli.commands import Command, Group
from speculant.cli.train_data import register_data
from speculant.cli.train_help import (
    DRAFT_MODEL_EXAMPLES,
    DRAFT_MODEL_HELP,
    EXAMPLES,
    HEAD_EXAMPLES,
    HEAD_HELP,
    HELP,
    PARD_EXAMPLES,
    PARD_HELP,
)
from speculant.cli.train_settings import JOINT_ONLY, ON_POLICY_ONLY, check_data, complete_settings, head_options
from speculant.options import kinds
from speculant.options.model import ModelOptions
from speculant.training.files import Files
from speculant.training.kinds import DRAFT_MODEL, KINDS, PARD, find_kind
from speculant.training.settings import TrainSettings

DRAFT_ONLY = ("like", "before", "before_tokens", "on_policy", *ON_POLICY_ONLY)
HEADS_ONLY = ("feature_weight", "depth", "depth_from", "decay")  # a draft model learns all depths at once


class TrainCommand(Command):
    """The command, with --data taking all values up to the next option.

    Attributes:
        without: parameters of `train` that this command lacks.
    """

    lists = ("--data", "--before")
    without: ClassVar[Sequence[str]] = (*DRAFT_ONLY, "joint", *JOINT_ONLY)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options for this kind."""
        return [param for param in super().get_params(ctx) if param.name not in self.without]


class JointCommand(TrainCommand):
    """The command for heads that can be trained together with their model."""

    without = DRAFT_ONLY


class DraftModelCommand(TrainCommand):
    """The command for draft models."""

    without = (*HEADS_ONLY, "joint", *JOINT_ONLY)


class PardCommand(TrainCommand):
    """The command for PARD models, which are draft models with several depths."""

    without = ("feature_weight", *(name for name in DRAFT_ONLY if name != "like"), "joint", *JOINT_ONLY)


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(cls=Group, help=HELP, epilog=EXAMPLES, rich_markup_mode=None)
    group.callback()(lambda: None)
    register_data(group)
    bound = bind(train)
    for kind in KINDS:
        group.command(
            kind.name,
            cls=JointCommand if kind.joint else TrainCommand,
            help=HEAD_HELP.format(name=kind.name, source=kind.source),
            short_help=f"train a head of kind {kind.name}",
            epilog=HEAD_EXAMPLES.format(name=kind.name),
        )(bound)
    models = (
        (PARD, PardCommand, PARD_HELP, PARD_EXAMPLES, "a PARD model"),
        (DRAFT_MODEL, DraftModelCommand, DRAFT_MODEL_HELP, DRAFT_MODEL_EXAMPLES, "a draft model"),
    )
    for kind, command, text, examples, noun in models:
        group.command(
            kind.name, cls=command, help=text.format(source=kind.source), short_help=f"train {noun}", epilog=examples
        )(bound)
    app.add_typer(group, name="train")


def train(
    context: typer.Context,
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            metavar="PATH...",
            help="folders of `train data`, .txt or .jsonl files ({text}, {messages}, or {source, target})",
            rich_help_panel="Files",
        ),
    ],
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            metavar="N",
            parser=parse(kinds.whole(8)),
            help="maximum tokens per text; default: the model's positions",
            rich_help_panel="Training",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="option of a new head or model; may be repeated; a wrong name lists them",
            rich_help_panel="Training",
        ),
    ] = None,
    *,
    model: Annotated[ModelOptions, Take(without=("fast",))],
    files: Annotated[dict[str, Any], Take(Files)],
    given: Annotated[dict[str, Any], Take(TrainSettings)],
) -> int:
    """Load the data and the model, train, write the result."""
    from speculant.cli.loading import load, model_name, model_title
    from speculant.cli.loading_checks import check_named
    from speculant.cli.terminal import importing, say
    from speculant.cli.train_progress import show_training, summarize_training
    from speculant.training.checkpoints import state_file
    from speculant.training.output import check_output

    check_named(ModelOptions(model=model.model))
    check_data(data)
    kind = find_kind(str(context.info_name))
    place = files["out"]
    check_output(place, resume=files.get("resume", False), noun=kind.noun)  # before the model is loaded
    options = head_options(kind, set_ or ())
    settings = complete_settings(kind, given)
    with importing("PyTorch and transformers"):
        from speculant.training.run import train_head
        from speculant.training.workers import find_launched_device, is_first_launched
    folders = Files(**files, options=options)
    loading = replace(model, device=model.device or find_launched_device())
    target, tokenizer, used = load(loading, needed="training reads hidden states of decoder layers")
    from speculant.training.fingerprint import identify
    from speculant.training.reading import read_data
    from speculant.training.sources import decoder_start

    identity = identify(target, tokenizer, name=model_title(model.model), source=model_name(model.model))
    texts_read = read_data(data, tokenizer, identity, start=decoder_start(target))
    note = say if is_first_launched() else logging.getLogger(__name__).debug
    for each in texts_read.notes:
        note(f"warning: {each}")
    note(f"{len(texts_read.texts)} texts, {texts_read.texts.tokens} tokens; threads: {used}.")
    try:
        with show_training(settings) as report:
            record = train_head(
                kind,
                target,
                texts_read,
                identity,
                settings,
                folders,
                tokenizer=tokenizer,
                longest=length,
                report=report,
                note=note,
            )
    except KeyboardInterrupt:
        saved = state_file(place).exists()
        where = (
            f"the training is saved in {place}. The same command with --resume continues"
            if saved
            else "nothing is saved"
        )
        say(f"interrupted; {where}.")
        raise
    if record is not None:
        if not record["best"]["step"]:
            say(
                f"warning: no measurement was better than the first, so the {kind.noun} is unchanged. "
                "Train for more --steps, with a lower --lr, or on more texts."
            )
        for each in summarize_training(record, kind.noun, place):
            print(each)
    return 0
