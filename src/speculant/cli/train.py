"""`speculant train`: trains heads and draft models on texts that their target writes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command, Group
from speculant.cli.train_data import register_data
from speculant.cli.train_settings import (
    JOINT_ONLY,
    ON_POLICY_ONLY,
    TrainingData,
    check_data,
    complete_settings,
)
from speculant.options.model import ModelOptions
from speculant.registry.settings import read_texts
from speculant.training.files import Files
from speculant.training.kinds import DRAFT_MODEL, KINDS, PARD, find_kind
from speculant.training.settings import TrainSettings

HELP = """\
Train heads or a draft model for a target model. First let the target write texts with `data`, then train on them."""

EXAMPLES = """
speculant train data --model your/model --prompts chats.jsonl --out texts
speculant train eagle --model your/model --data texts --out head
speculant generate "Why?" --model your/model --head head
"""

HEAD_HELP = """\
Train a head of kind {name} for a model ({source}).

Training ends after --steps or --minutes and writes the weights with the best held-out acceptance to DIR: the head in
its public layout, a model card and training.json. Ctrl-C saves; --resume continues. With --steps, an interrupted
training gives the same head as an uninterrupted one."""

HEAD_EXAMPLES = """
speculant train {name} --model your/model --data texts --out head
speculant train {name} --model your/model --data texts --out head --resume
torchrun --nproc-per-node 8 -m speculant train {name} \\
    --model your/model --data texts --out head
"""

PARD_HELP = """\
Train a PARD model: a draft model that drafts a block of tokens in one pass, from mask tokens ({source}).

It starts from the draft model of --init, which is adapted, or from new weights in the shape of --like and --set. The
mask is the token that is rarest in the texts. Training ends after --steps or --minutes and writes the weights with the
best held-out acceptance to DIR: a model that transformers and vLLM load, with the target's tokenizer, a model card and
training.json. Ctrl-C saves; --resume continues. With --steps, an interrupted training gives the same model as an
uninterrupted one."""

PARD_EXAMPLES = """
speculant train pard --model your/model --data texts --out pard --init your/small
speculant generate "Why?" --model your/model --head pard
"""

DRAFT_MODEL_HELP = """\
Train a draft model: a small language model with the target's vocabulary ({source}).

It starts from new weights in the shape of --like and --set, or from the model of --init. Training ends after --steps or
--minutes and writes the weights with the best held-out acceptance to DIR: a model that transformers and vLLM load, with
the target's tokenizer, a model card and training.json. Ctrl-C saves; --resume continues. With --steps, an interrupted
training gives the same model as an uninterrupted one."""

DRAFT_MODEL_EXAMPLES = """
speculant train draft-model --model your/model --data texts --out draft
speculant train draft-model --model your/model --data texts --out aligned \\
    --init your/small --on-policy 0.5 --loss tvd
speculant train draft-model --model your/model --data texts --out second \\
    --before draft   # for specinfer
speculant generate "Why?" --model your/model --draft-model draft
"""

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
    data: TrainingData,
    model: Annotated[ModelOptions, Take(without=("fast",))],
    files: Annotated[dict[str, Any], Take(Files)],
    given: Annotated[dict[str, Any], Take(TrainSettings)],
) -> int:
    """Load the data and the model, train, write the result."""
    from speculant.cli.loading import load, model_name, model_title
    from speculant.cli.loading_checks import check_named
    from speculant.cli.terminal import importing, say
    from speculant.cli.train_progress import show_training
    from speculant.training.output import check_output

    check_named(ModelOptions(model=model.model))
    check_data(data.data)
    kind, place = find_kind(str(context.info_name)), files["out"]
    check_output(place, resume=files.get("resume", False), noun=kind.noun)  # before the model is loaded
    options = read_texts(kind.title, kind.settings, data.settings)
    settings, folders = complete_settings(kind, given), Files(**files, options=options)
    with importing("PyTorch and transformers"):
        from speculant.training.run import train_head
        from speculant.training.workers import find_launched_device, is_first_launched
    loading = replace(model, device=model.device or find_launched_device())
    target, tokenizer, used = load(loading, needed="training reads hidden states of decoder layers")
    from speculant.training.fingerprint import identify
    from speculant.training.reading import read_data
    from speculant.training.sources import decoder_start

    identity = identify(target, tokenizer, name=model_title(model.model), source=model_name(model.model))
    found = read_data(data.data, tokenizer, identity, start=decoder_start(target))
    note = say if is_first_launched() else logging.getLogger(__name__).debug
    for each in found.notes:
        note(f"warning: {each}")
    note(f"{len(found.texts)} texts, {found.texts.tokens} tokens; threads: {used}.")
    with interruption_reported(place), show_training(settings) as report:
        record = train_head(
            kind,
            target,
            found,
            identity,
            settings,
            folders,
            tokenizer=tokenizer,
            longest=data.length,
            report=report,
            note=note,
        )
    if record is not None:
        print_summary(record, kind.noun, place)
    return 0


@contextmanager
def interruption_reported(folder: Path) -> Iterator[None]:
    """Say what is saved in a folder if the training is interrupted in this context."""
    from speculant.cli.terminal import say
    from speculant.training.checkpoints import state_file

    try:
        yield
    except KeyboardInterrupt:
        saved = f"the training is saved in {folder}. The same command with --resume continues"
        say(f"interrupted; {saved if state_file(folder).exists() else 'nothing is saved'}.")
        raise


def print_summary(record: Mapping[str, Any], noun: str, folder: Path) -> None:
    """Print what a training achieved.

    Args:
        record: the training's record.
        noun: "head" or "draft model".
        folder: folder of the result.
    """
    from speculant.cli.terminal import say
    from speculant.cli.train_progress import summarize_training

    if not record["best"]["step"]:
        say(
            f"warning: no measurement was better than the first, so the {noun} is unchanged. "
            "Train for more --steps, with a lower --lr, or on more texts."
        )
    for each in summarize_training(record, noun, folder):
        print(each)
