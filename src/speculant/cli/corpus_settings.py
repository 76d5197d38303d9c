"""The options of `speculant corpus build` and `speculant base learn`, which write the same files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial

from speculant.core.errors import UsageError
from speculant.options import kinds, option

BUDGET = 64_000_000
MIN_BUDGET = 64_000
BATCH = 8  # prompts answered at a time

_bases = partial(option.option, panel="Bases")


class CorpusKind(str, Enum):
    """The kind of file to build."""

    MIX = "mix"
    TRIGRAM = "trigram"
    SUFFIX = "suffix"
    SAM = "sam"
    MIX_BASE = "mix-base"
    VOCABULARY = "vocabulary"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFile:
    """The file to build."""

    output: str = option.option(option.REQUIRED, "memory file to write", kinds.FILE_NAME, aliases=("-o",))
    budget: int | None = _bases(
        None,
        "maximum size of the file, such as 256MB; default: 64MB",
        kinds.size(min=MIN_BUDGET, example="64MB", metavar="BYTES"),
    )
    license: str | None = _bases(None, "license of the texts, recorded in the file", kinds.name(metavar="TEXT"))
    force: bool = option.option(False, "replace an existing memory file", kinds.FLAG)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What `speculant corpus build` reads, and into what it turns it."""

    inputs: tuple[str, ...] = option.option(
        option.REQUIRED,
        "files, folders, hf:ORG/NAME[:SPLIT]; for bases also SOURCE@WEIGHT",
        kinds.name(),
        several=True,
    )
    kind: CorpusKind = option.option(
        CorpusKind.MIX,
        "mix (default), trigram (aded), suffix (rest), sam; mix-base: a frozen base for mix; vocabulary: ranked token "
        "ids, for heads that draft only frequent tokens",
        kinds.member(CorpusKind),
    )
    tokenizer: str | None = option.option(None, "tokenizer, instead of --model", kinds.name(metavar="PATH|ID"))
    exclude: tuple[str, ...] = _bases(
        (),
        "skip documents that share 13 consecutive tokens with these files of text or rows",
        kinds.name(metavar="FILE ..."),
        several=True,
    )
    source: str | None = _bases(None, "origin of the texts, recorded in the file", kinds.name(metavar="TEXT"))
    restart: bool = _bases(False, "discard the work of an interrupted build", kinds.FLAG)

    def check(self, built: BuiltFile) -> None:
        """Refuse options that only apply to bases.

        Raises:
            UsageError: such an option was given for another kind.
        """
        given = {
            "--budget": built.budget is not None,
            "--exclude": bool(self.exclude),
            "--license": built.license is not None,
            "--source": self.source is not None,
            "--restart": self.restart,
        }
        for flag, unused in given.items():
            if unused and self.kind is not CorpusKind.MIX_BASE:
                raise UsageError(
                    f"{flag} is for frozen bases, not for memories of kind {self.kind.value}. Add --kind mix-base."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOptions:
    """What `speculant base learn` learns.

    Raises:
        UsageError: they do not say what to learn, or an option would be ignored.
    """

    minutes: float | None = option.option(None, "minutes to answer prompts", kinds.number(above=True, metavar="N"))
    tokens: int | None = option.option(None, "tokens of answers to reach", kinds.whole(1))
    prompts: tuple[str, ...] = option.option(
        (),
        "prompts, as for `generate`; default: the package's own",
        kinds.name(metavar="FILE ..."),
        several=True,
    )
    answers: tuple[str, ...] = option.option(
        (),
        "also learn these answers, as for `corpus build`; SOURCE@WEIGHT",
        kinds.name(metavar="SOURCE ..."),
        several=True,
    )
    batch: int = option.option(BATCH, "prompts answered at a time", kinds.whole(1))

    def __post_init__(self) -> None:
        if not self.writes and not self.answers:
            raise UsageError("set --minutes or --tokens to let the model answer, or name --answers to learn.")
        if self.minutes is not None and self.tokens is not None:
            raise UsageError("--minutes and --tokens both end the answers. Leave one out.")
        if self.prompts and not self.writes:
            raise UsageError("--prompts would be ignored: add --minutes or --tokens, so that the model answers them.")

    @property
    def writes(self) -> bool:
        """Whether the model answers prompts."""
        return self.minutes is not None or self.tokens is not None
