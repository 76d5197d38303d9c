"""The options that several commands share: how they are typed, and the values they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from speculant.cli.values import node_count, nonempty, share, temperature, whole
from speculant.core.errors import UsageError
from speculant.registry import METHODS, VERIFIERS

BUNDLED = "bundled"
DEFAULT_METHOD = "mix"  # without a head
MODEL_HELP = "a folder, a hub id or a .gguf file; default: bundled, the story model that comes with the package"

_model = nonempty(f"name a folder or a hub id, or leave the option out for the {BUNDLED} model")


def _methods(incomplete: str) -> list[str]:
    return [name for name in METHODS if name.startswith(incomplete)]


def _verifiers(incomplete: str) -> list[str]:
    return [name for name in VERIFIERS if name.startswith(incomplete)]


ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="PATH|ID", parser=_model, help=MODEL_HELP, rich_help_panel="Model"),
]
ModelArgument = Annotated[str | None, typer.Argument(metavar="MODEL", parser=_model, help=MODEL_HELP)]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="NAME",
        help="float32, bfloat16, float16 or auto; default: float32 on a CPU, else auto",
        rich_help_panel="Model",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="cpu, cuda, cuda:1, mps, or auto to spread the model; default: an accelerator if there is one",
        rich_help_panel="Model",
    ),
]
AttentionOption = Annotated[
    str | None,
    typer.Option(
        "--attn",
        metavar="NAME",
        help="attention implementation: sdpa and eager verify trees; default: the model's",
        rich_help_panel="Model",
    ),
]
FastOption = Annotated[
    bool | None,
    typer.Option(
        "--fast/--no-fast",
        help="run passes with Speculant's own kernels on CPUs, as CUDA graphs on GPUs; default: on CPUs, where faster",
        rich_help_panel="Model",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        parser=whole(1, 4096),
        help="CPU threads; default: by the model's size, or OMP_NUM_THREADS",
        rich_help_panel="Model",
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="see `speculant methods`; default: mix-head with --head, else mix",
        rich_help_panel="Drafting",
        autocompletion=_methods,
    ),
]
DrafterOption = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        metavar="MODULE:CLASS",
        help="a drafter of your own in place of --method; modules of this folder are found, too",
        rich_help_panel="Drafting",
    ),
]
StrictFlag = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="refuse a model that drafts cannot be verified on; else it is decoded plainly, and a line says so",
        rich_help_panel="Drafting",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="a setting of the method, see `speculant methods NAME`; may be repeated",
        rich_help_panel="Drafting",
    ),
]
VerifierOption = Annotated[
    str | None,
    typer.Option(
        "--verifier",
        metavar="NAME",
        help="the acceptance rule, with settings as in typical:epsilon=0.1; default: the method's own",
        rich_help_panel="Drafting",
        autocompletion=_verifiers,
    ),
]
LossyFlag = Annotated[
    bool,
    typer.Option("--lossy", help="allow acceptance rules that change the output", rich_help_panel="Drafting"),
]
DraftModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--draft-model",
        metavar="PATH|ID",
        parser=nonempty("name a folder or a hub id, or leave the option out"),
        help="a smaller model, for methods that need one; repeated for specinfer; default: the bundled model's",
        rich_help_panel="Drafting",
    ),
]
DraftDtypeOption = Annotated[
    str | None,
    typer.Option(
        "--draft-dtype",
        metavar="NAME",
        help="the draft model's dtype; default: that of --dtype",
        rich_help_panel="Drafting",
    ),
]
DraftDeviceOption = Annotated[
    str | None,
    typer.Option(
        "--draft-device",
        metavar="NAME",
        help="the draft model's device; default: that of --device",
        rich_help_panel="Drafting",
    ),
]
HeadOption = Annotated[
    str | None,
    typer.Option(
        "--head",
        metavar="PATH|ID",
        parser=nonempty("name a folder or a hub id, or leave the option out"),
        help="a trained head of the model, for methods that need one; default: the bundled model's",
        rich_help_panel="Drafting",
    ),
]
OnlineFlag = Annotated[
    bool,
    typer.Option(
        "--online",
        help="distil the draft model or head to the model meanwhile, from what it rejects; --memory keeps the weights",
        rich_help_panel="Drafting",
    ),
]
NodesOption = Annotated[
    Any,
    typer.Option(
        "--nodes",
        metavar="N|auto",
        parser=node_count,
        help="most tokens per draft; default: auto, chosen each round by cost and acceptance",
        rich_help_panel="Drafting",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="FILE",
        parser=nonempty("name a memory file, or leave the option out"),
        help="begin with this memory if it exists, and save it there",
        rich_help_panel="Drafting",
    ),
]
BaseOption = Annotated[
    list[str] | None,
    typer.Option(
        "--base",
        metavar="FILE",
        help="a frozen base under the memory, up to three; bundled: that of the story model; default: those of "
        "`speculant base list` that fit, and the bundled one if it fits",
        rich_help_panel="Drafting",
    ),
]
NoBaseFlag = Annotated[
    bool, typer.Option("--no-base", help="begin without a base, whatever there is", rich_help_panel="Drafting")
]
MemoryLimitOption = Annotated[
    int,
    typer.Option(
        "--memory-limit",
        metavar="MB",
        parser=whole(1, 2**43, unit=" megabytes"),
        help="most the memory may take; default: 256",
        rich_help_panel="Drafting",
    ),
]
ShareOption = Annotated[
    str | None,
    typer.Option(
        "--share",
        metavar="URL",
        parser=nonempty("name a store such as redis://host:6379, or leave the option out"),
        envvar="SPECULANT_SHARE",
        show_envvar=False,
        help="learn from other replicas, and let them learn, through redis://host:port[/db][?tenant=NAME]; default: "
        "$SPECULANT_SHARE, which keeps a password out of the list of processes",
        rich_help_panel="Drafting",
    ),
]
MaxNewTokensOption = Annotated[
    int,
    typer.Option(
        "--max-new-tokens",
        metavar="N",
        parser=whole(1),
        help="most tokens to generate; default: 256",
        rich_help_panel="Text",
    ),
]
TemperatureOption = Annotated[
    float,
    typer.Option(
        "--temperature",
        metavar="T",
        parser=temperature,
        help="0 for greedy decoding, the default; above 0 to sample",
        rich_help_panel="Text",
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        metavar="P",
        parser=share,
        help="sample from the most likely tokens that together have probability P",
        rich_help_panel="Text",
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        "--top-k",
        metavar="K",
        parser=whole(0),
        help="sample from the K most likely tokens",
        rich_help_panel="Text",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", parser=whole(0), help="makes sampling repeatable", rich_help_panel="Text"),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        parser=nonempty("every text contains the empty one, so generation would end after one token"),
        help="end after this text; may be repeated",
        rich_help_panel="Text",
    ),
]
JsonSchemaOption = Annotated[
    str | None,
    typer.Option(
        "--json-schema",
        metavar="FILE",
        help="the text is JSON that the schema in FILE describes, without whitespace between its parts",
        rich_help_panel="Text",
    ),
]
RegexOption = Annotated[
    str | None,
    typer.Option(
        "--regex", metavar="PATTERN", help="the whole text matches this regular expression", rich_help_panel="Text"
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="print JSON")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a model is loaded and run.

    Attributes:
        model: a folder, a hub id or a GGUF file; None for the bundled model.
        dtype, device, attention, fast: as in `Speculator.from_pretrained`.
        threads: CPU threads; None for a number that fits the model.
    """

    model: str | None = None
    dtype: str | None = None
    device: str | None = None
    attention: str | None = None
    fast: bool | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """How drafts are made.

    Attributes:
        method: of the registry; None for `mix-head` with a head, else `mix`; see `registry.default_method`.
        drafter: "module:Class" of a user's own drafter, in place of a method; or None.
        settings: each "name=value".
        nodes: most nodes per draft, "auto", or None for the method's default.
        memory: the file to begin with and to save to.
        memory_limit: megabytes that the memory may take.
        bases: files of frozen bases; None for those of the user's folder that fit.
        verifier: the acceptance rule, or None for the method's own.
        lossy: whether it may change the output.
        draft_models: folders or hub ids, one for methods that need a draft model, or several where they are merged.
        draft_dtype, draft_device: how they are loaded; None for the target's.
        head: a folder or a hub id for methods that need a trained head, or None.
        online: whether the draft model or head learns while it drafts.
        share: the URL of the store that replicas learn from each other through, or None.
        strict: whether a model that drafts cannot be verified on is refused.

    Raises:
        UsageError: an option would have no effect.
    """

    method: str | None = None
    drafter: str | None = None
    settings: tuple[str, ...] = ()
    nodes: int | str | None = None
    memory: str | None = None
    memory_limit: int = 256
    bases: tuple[str, ...] | None = None
    verifier: str | None = None
    lossy: bool = False
    draft_models: tuple[str, ...] = ()
    draft_dtype: str | None = None
    draft_device: str | None = None
    head: str | None = None
    online: bool = False
    share: str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.drafter is not None and (self.method is not None or self.head is not None):
            option = "--method" if self.method is not None else "--head"
            raise UsageError(f"--drafter and {option} both say what drafts; leave one of them out.")
        given = {"--draft-dtype": self.draft_dtype, "--draft-device": self.draft_device}
        ignored = [name for name, value in given.items() if value is not None]
        if not self.draft_models and ignored:
            names = " and ".join(ignored)
            raise UsageError(f"{names} would be ignored without --draft-model. Add it, or leave {names} out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen and when the text ends, as in `Speculator.stream`.

    Raises:
        UsageError: an option would have no effect.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.temperature:
            return
        given = {"--top-p": self.top_p, "--top-k": self.top_k, "--seed": self.seed}
        ignored = [name for name, value in given.items() if value is not None]
        if ignored:
            names = " and ".join(ignored)
            raise UsageError(
                f"{names} would be ignored: decoding is greedy. Add --temperature 1 to sample, or leave {names} out."
            )

    def options(self) -> dict[str, Any]:
        """Return the options of `Speculator.stream`."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "stop": list(self.stop) or None,
        }


def named_bases(base: list[str] | None, *, no_base: bool) -> tuple[str, ...] | None:
    """Return the bases that --base and --no-base name; None for those of the user's folder.

    Raises:
        UsageError: both were given.
    """
    if base and no_base:
        raise UsageError("--base would be ignored beside --no-base. Leave one out.")
    return () if no_base else tuple(base) if base else None
