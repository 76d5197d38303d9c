"""`speculant train`: heads and draft models that draft for a model, trained on what it writes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import typer

from speculant.cli.commands import Command, Group
from speculant.cli.options import AttentionOption, DeviceOption, DtypeOption, Loading, ModelOption, ThreadsOption
from speculant.cli.train_data import register_data
from speculant.cli.train_draft_options import (
    BeforeOption,
    LikeOption,
    OnPolicyOption,
    OpeningOption,
    WritingTemperatureOption,
    WrittenTokensOption,
)
from speculant.cli.train_help import DRAFT_MODEL_EXAMPLES, DRAFT_MODEL_HELP, EXAMPLES, HEAD_EXAMPLES, HEAD_HELP, HELP
from speculant.cli.train_options import (
    AccumulateOption,
    AnchorsOption,
    CacheDirOption,
    CacheOption,
    CheckpointMinutesOption,
    CheckpointStepsOption,
    ClipOption,
    DataOption,
    DecayOption,
    DepthFromOption,
    DepthOption,
    EvaluateStepsOption,
    FeatureWeightOption,
    HeldOutOption,
    InitOption,
    KeepOption,
    LengthOption,
    LossOption,
    LrOption,
    MinutesOption,
    OfHeadOption,
    OptimizerOption,
    OutOption,
    PatienceOption,
    PrecisionOption,
    ResumeOption,
    SaveDtypeOption,
    ScheduleOption,
    StepsOption,
    TextsOption,
    TrainSeedOption,
    WarmupOption,
    WeightDecayOption,
)
from speculant.cli.values import shortened
from speculant.core.errors import FileError, UsageError
from speculant.training.kind import Kind
from speculant.training.kinds import DRAFT_MODEL, KINDS, find_kind

DRAFT_ONLY = ("like", "before", "on_policy", "temperature", "opening", "new_tokens")
HEADS_ONLY = ("feature_weight", "depth", "depth_from", "decay")  # a draft model learns all depths in one


class TrainCommand(Command):
    """The command, whose --data takes all values up to the next option.

    Attributes:
        without: parameters of `train` that it does not have.
    """

    lists = ("--data", "--before")
    without: ClassVar[Sequence[str]] = DRAFT_ONLY

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of this kind."""
        return [param for param in super().get_params(ctx) if param.name not in self.without]


class DraftModelCommand(TrainCommand):
    """The command of draft models."""

    without = HEADS_ONLY


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(cls=Group, help=HELP, epilog=EXAMPLES, rich_markup_mode=None)
    group.callback()(lambda: None)
    register_data(group)
    for kind in KINDS:
        group.command(
            kind.name,
            cls=TrainCommand,
            help=HEAD_HELP.format(name=kind.name, source=kind.source),
            short_help=f"train a head of kind {kind.name}",
            epilog=HEAD_EXAMPLES.format(name=kind.name),
        )(train)
    group.command(
        DRAFT_MODEL.name,
        cls=DraftModelCommand,
        help=DRAFT_MODEL_HELP.format(source=DRAFT_MODEL.source),
        short_help="train a draft model",
        epilog=DRAFT_MODEL_EXAMPLES,
    )(train)
    app.add_typer(group, name="train")


def train(
    context: typer.Context,
    data: DataOption,
    out: OutOption,
    model: ModelOption = None,
    resume: ResumeOption = False,
    init: InitOption = None,
    cache: CacheOption = 0,
    cache_dir: CacheDirOption = None,
    checkpoint_steps: CheckpointStepsOption = None,
    checkpoint_minutes: CheckpointMinutesOption = 5.0,
    steps: StepsOption = None,
    minutes: MinutesOption = None,
    lr: LrOption = None,
    loss: LossOption = None,
    feature_weight: FeatureWeightOption = None,
    depth: DepthOption = None,
    depth_from: DepthFromOption = 0.0,
    decay: DecayOption = None,
    optimizer: OptimizerOption = "adamw",
    schedule: ScheduleOption = "linear",
    warmup: WarmupOption = 50,
    weight_decay: WeightDecayOption = 0.0,
    clip: ClipOption = 1.0,
    texts: TextsOption = 8,
    anchors: AnchorsOption = None,
    accumulate: AccumulateOption = 1,
    length: LengthOption = None,
    precision: PrecisionOption = "float32",
    save_dtype: SaveDtypeOption = "float32",
    set_: OfHeadOption = None,
    seed: TrainSeedOption = 0,
    evaluate_steps: EvaluateStepsOption = 200,
    held_out: HeldOutOption = 128,
    patience: PatienceOption = 0,
    keep: KeepOption = "best",
    like: LikeOption = None,
    before: BeforeOption = None,
    on_policy: OnPolicyOption = 0.0,
    temperature: WritingTemperatureOption = None,
    opening: OpeningOption = None,
    new_tokens: WrittenTokensOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    attention: AttentionOption = None,
    threads: ThreadsOption = None,
) -> int:
    """Load, train, write."""
    from speculant.cli.loading import check_named, load, model_name, model_title
    from speculant.cli.terminal import importing, say
    from speculant.cli.train_progress import shown
    from speculant.training.checkpoints import state_file
    from speculant.training.files import Files
    from speculant.training.output import check_output
    from speculant.training.settings import TrainSettings

    check_named(Loading(model=model))
    check_data(data)
    kind = find_kind(str(context.info_name))
    place = Path(out)
    check_output(place, resume=resume, noun=kind.noun)  # before the model is loaded
    of_head = head_options(kind, set_ or ())
    options: dict[str, Any] = {
        "loss": loss or kind.loss,
        "feature_weight": kind.feature_weight if feature_weight is None else feature_weight,
        "depth": depth or kind.depth,
        "decay": decay or kind.decay,
        "lr": lr or kind.lr,
        "anchors": anchors or kind.anchors,
    }
    written = {"temperature": temperature, "opening": opening, "new_tokens": new_tokens}
    options |= {name: value for name, value in written.items() if value is not None}
    if not on_policy and (ignored := [name for name, value in written.items() if value is not None]):
        raise UsageError(
            f"--{ignored[0].replace('_', '-')} would be ignored without --on-policy: it is of the texts that the draft "
            "model writes. Add --on-policy, or leave it out."
        )
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
        accumulate=accumulate,
        precision=precision,
        seed=seed,
        evaluate_every=evaluate_steps,
        patience=patience,
        keep=keep,
        held_out=held_out,
        on_policy=on_policy,
    )
    with importing("PyTorch and transformers"):
        from speculant.training.run import train_head
        from speculant.training.workers import launched_device, launched_first
    files = Files(
        out=place,
        cache=cache,
        cache_folder=None if cache_dir is None else Path(cache_dir),
        resume=resume,
        init=init,
        checkpoint_steps=checkpoint_steps,
        checkpoint_minutes=checkpoint_minutes,
        options=of_head,
        like=like,
        before=tuple(before or ()),
        dtype=save_dtype,
    )
    device = device or launched_device()
    loading = Loading(model=model, dtype=dtype, device=device, attention=attention, threads=threads)
    target, tokenizer, used = load(loading)
    from speculant.training.fingerprint import identify
    from speculant.training.reading import read_data

    identity = identify(target, tokenizer, name=model_title(model), source=model_name(model))
    texts_read = read_data(data, tokenizer, identity)
    note = say if launched_first() else logging.getLogger(__name__).debug
    for each in texts_read.notes:
        note(f"warning: {each}")
    note(f"{len(texts_read.texts)} texts, {texts_read.texts.tokens} tokens; threads: {used}.")
    try:
        with shown(settings) as report:
            record = train_head(
                kind,
                target,
                texts_read,
                identity,
                settings,
                files,
                tokenizer=tokenizer,
                longest=length,
                report=report,
                note=note,
            )
    except KeyboardInterrupt:
        saved = state_file(place).exists()
        where = (
            f"the training is saved in {out}. The same command with --resume goes on" if saved else "nothing is saved"
        )
        say(f"interrupted; {where}.")
        raise
    if record is not None:
        best = record["best"]
        if not best["step"]:
            say(
                f"warning: no measurement was better than the first, so the {kind.noun} is as it was before training. "
                "Train for more --steps, with a lower --lr, or on more texts."
            )
        print(f"{kind.noun:<12}{out}")
        print(f"best        step {best['step']} of {record['steps']}, {record['seconds'] / 60:.1f} minutes")
        print(f"acceptance  {' '.join(format(rate, '.3f') for rate in best['agreement'])} by depth, greedy")
        print(f"chain       {best['greedy']:.2f} tokens a round greedy, {best['sampled']:.2f} sampled (estimated)")
    return 0


def check_data(paths: Sequence[str]) -> None:
    """Check before anything is loaded that the files and folders of texts are there.

    Raises:
        FileError: one is not.
    """
    for path in paths:
        if not Path(path).exists():
            raise FileError(f"there is no file or folder {path}. `speculant train data` writes a folder of texts.")


def head_options(kind: Kind, given: Sequence[str]) -> dict[str, Any]:
    """Return the options of new heads that "name=value" texts set.

    Raises:
        UsageError: there is no such option, or the value is of another type.
    """
    from speculant.cli.settings import Setting, parse

    known, found = kind.options, dict[str, Any]()
    for each in given:
        name, mark, text = each.partition("=")
        name = name.strip().replace("-", "_")
        if not mark:
            raise UsageError(f"--set takes NAME=VALUE, not '{shortened(each)}'.")
        if name not in known:
            some = ", ".join(f"{key} ({value})" for key, value in known.items()) or "none"
            raise UsageError(f"{kind.plural} have no option '{shortened(name)}'; there are: {some}.")
        found[name] = parse(Setting(name, type(known[name]), known[name], ""), text.strip())
    return found
