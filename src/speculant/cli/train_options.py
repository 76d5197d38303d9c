"""The options of commands that train."""

from __future__ import annotations

from typing import Annotated

import typer

from speculant.cli.values import byte_count, nonnegative, positive, share, whole

DataOption = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="PATH...",
        help="folders of `train data`, .txt or .jsonl files ({text} or {messages})",
        rich_help_panel="Files",
    ),
]
OutOption = Annotated[
    str, typer.Option("--out", metavar="DIR", help="the folder that gets what is trained", rich_help_panel="Files")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="go on with the training in DIR", rich_help_panel="Files")]
InitOption = Annotated[
    str | None,
    typer.Option(
        "--init",
        metavar="PATH|ID",
        help="begin with this head or draft model; default: new weights",
        rich_help_panel="Files",
    ),
]
OfHeadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="an option of new weights of this kind; may be repeated; a wrong name lists them",
        rich_help_panel="Training",
    ),
]
CacheOption = Annotated[
    int,
    typer.Option(
        "--cache",
        metavar="BYTES",
        parser=byte_count,
        help="disk that the target's hidden states may take, as in 2GB; default: 0, computed every time",
        rich_help_panel="Files",
    ),
]
CacheDirOption = Annotated[
    str | None,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        help="where they are kept for other trainings; default: in --out until the end",
        rich_help_panel="Files",
    ),
]
CheckpointStepsOption = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-steps",
        metavar="N",
        parser=whole(1),
        help="steps between checkpoints; default: by the clock",
        rich_help_panel="Files",
    ),
]
CheckpointMinutesOption = Annotated[
    float,
    typer.Option(
        "--checkpoint-minutes",
        metavar="M",
        parser=positive,
        help="minutes between checkpoints; default: 5",
        rich_help_panel="Files",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--steps",
        metavar="N",
        parser=whole(1),
        help="steps to train; default: 5 passes over the data, without --minutes",
        rich_help_panel="Training",
    ),
]
MinutesOption = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        metavar="M",
        parser=positive,
        help="minutes to train, at most; results are repeatable by --steps alone",
        rich_help_panel="Training",
    ),
]
LrOption = Annotated[
    float | None,
    typer.Option(
        "--lr",
        metavar="RATE",
        parser=positive,
        help="learning rate; default: the kind's, about 0.001",
        rich_help_panel="Training",
    ),
]
LossOption = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="LOSS",
        help="ce, kl, rkl, jsd, tvd, top, or a weighted sum as in kl+0.1ce; default: the kind's",
        rich_help_panel="Training",
    ),
]
FeatureWeightOption = Annotated[
    float | None,
    typer.Option(
        "--feature-weight",
        metavar="W",
        parser=nonnegative,
        help="of the distance of hidden states, for kinds that predict them",
        rich_help_panel="Training",
    ),
]
DepthOption = Annotated[
    int | None,
    typer.Option(
        "--depth",
        metavar="N",
        parser=whole(1, 64),
        help="drafted tokens that are trained; default: the kind's",
        rich_help_panel="Training",
    ),
]
DepthFromOption = Annotated[
    float,
    typer.Option(
        "--depth-from",
        metavar="SHARE",
        parser=nonnegative,
        help="train the first token alone until this share of the training; default: 0",
        rich_help_panel="Training",
    ),
]
DecayOption = Annotated[
    float | None,
    typer.Option(
        "--decay",
        metavar="D",
        parser=share,
        help="weights of the losses by depth: D^(depth - 1); default: the kind's, 0.8",
        rich_help_panel="Training",
    ),
]
OptimizerOption = Annotated[
    str, typer.Option("--optimizer", metavar="NAME", help="adamw (default) or muon", rich_help_panel="Training")
]
ScheduleOption = Annotated[
    str,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help="of the learning rate: linear (default), cosine or constant",
        rich_help_panel="Training",
    ),
]
WarmupOption = Annotated[
    int,
    typer.Option(
        "--warmup",
        metavar="N",
        parser=whole(0),
        help="steps over which the rate rises; default: 50",
        rich_help_panel="Training",
    ),
]
WeightDecayOption = Annotated[
    float,
    typer.Option(
        "--weight-decay",
        metavar="W",
        parser=nonnegative,
        help="of matrices; default: 0",
        rich_help_panel="Training",
    ),
]
ClipOption = Annotated[
    float,
    typer.Option(
        "--clip",
        metavar="NORM",
        parser=nonnegative,
        help="of gradients; 0 for none; default: 1",
        rich_help_panel="Training",
    ),
]
TextsOption = Annotated[
    int,
    typer.Option("--texts", metavar="N", parser=whole(1), help="of a batch; default: 8", rich_help_panel="Training"),
]
AnchorsOption = Annotated[
    int | None,
    typer.Option(
        "--anchors",
        metavar="N",
        parser=whole(1),
        help="positions of a text that are trained, at most; default: the kind's",
        rich_help_panel="Training",
    ),
]
AccumulateOption = Annotated[
    int,
    typer.Option(
        "--accumulate",
        metavar="N",
        parser=whole(1),
        help="batches of a step; default: 1",
        rich_help_panel="Training",
    ),
]
LengthOption = Annotated[
    int | None,
    typer.Option(
        "--length",
        metavar="N",
        parser=whole(8),
        help="tokens of a text that are used; default: the model's positions",
        rich_help_panel="Training",
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="NAME",
        help="of the arithmetic: float32 (default) or bfloat16; weights stay float32",
        rich_help_panel="Training",
    ),
]
SaveDtypeOption = Annotated[
    str,
    typer.Option(
        "--save-dtype",
        metavar="NAME",
        help="of the weights that are written: float32 (default), bfloat16 or float16",
        rich_help_panel="Files",
    ),
]
TrainSeedOption = Annotated[
    int, typer.Option("--seed", metavar="N", parser=whole(0), help="default: 0", rich_help_panel="Training")
]
EvaluateStepsOption = Annotated[
    int,
    typer.Option(
        "--evaluate-steps",
        metavar="N",
        parser=whole(1),
        help="steps between measurements of held-out acceptance; default: 200",
        rich_help_panel="Training",
    ),
]
HeldOutOption = Annotated[
    int,
    typer.Option(
        "--held-out",
        metavar="N",
        parser=whole(1),
        help="texts to measure on, a tenth at most; default: 128",
        rich_help_panel="Training",
    ),
]
KeepOption = Annotated[
    str,
    typer.Option(
        "--keep",
        metavar="best|last",
        help="the weights that are written: the best ones in greedy decoding on held-out texts (default), or the last",
        rich_help_panel="Training",
    ),
]
PatienceOption = Annotated[
    int,
    typer.Option(
        "--patience",
        metavar="N",
        parser=whole(0),
        help="end after so many measurements without gain; default: 0, never",
        rich_help_panel="Training",
    ),
]
