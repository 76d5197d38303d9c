"""The options of `train draft-model` that heads do not have."""

from __future__ import annotations

from typing import Annotated

import typer

from speculant.cli.values import nonnegative, positive, whole

LikeOption = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="PATH|ID",
        help="a new model of this one's config, but with the target's vocabulary; default: a small Llama",
        rich_help_panel="Draft model",
    ),
]
BeforeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--before",
        metavar="PATH|ID...",
        help="draft models beside which it will draft: learn only where they are wrong (Col-BT, for specinfer)",
        rich_help_panel="Draft model",
    ),
]
OnPolicyOption = Annotated[
    float,
    typer.Option(
        "--on-policy",
        metavar="SHARE",
        parser=nonnegative,
        help="of the batches, those whose texts the draft model continues itself (DistillSpec); default: 0",
        rich_help_panel="Draft model",
    ),
]
WritingTemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        metavar="T",
        parser=positive,
        help="at which it writes them; default: 1",
        rich_help_panel="Draft model",
    ),
]
OpeningOption = Annotated[
    int | None,
    typer.Option(
        "--opening",
        metavar="N",
        parser=whole(1),
        help="tokens of a text that it continues where the data has no prompts; default: 16",
        rich_help_panel="Draft model",
    ),
]
WrittenTokensOption = Annotated[
    int | None,
    typer.Option(
        "--new-tokens",
        metavar="N",
        parser=whole(1),
        help="that it writes, at most; default: 64",
        rich_help_panel="Draft model",
    ),
]
