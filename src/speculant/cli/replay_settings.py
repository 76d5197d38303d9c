"""The options of `speculant replay`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from speculant.core.errors import UsageError
from speculant.options import kinds, option
from speculant.options.drafting import AUTOMATIC, DEFAULT_METHOD, DraftingOptions

if TYPE_CHECKING:
    from speculant.bench.replay.traces import Recording

SHUFFLED = "shuffled"

_drafting = partial(option.option, panel="Drafting")
_requests = partial(option.option, panel="Requests")
_output = partial(option.option, panel="Output")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What to replay, and how.

    Attributes:
        traces: files of recordings.
        tokenizer: tokenizer for rows of text.
        jobs: number of processes; None for the number of cores.
        method: comma-separated names; None for the default.
        nodes: maximum numbers of tokens per draft; "auto" for sizes as decoding would choose them.
        chain, tree: shapes of the drafts; neither for trees.
        unite: "recorded:NAME" of a head to unite the methods with; "" for none.
        keep_memory: whether memory is kept across the requests of a file.
        corpora: memories that methods start with.
        order, seed, limit: order of the requests, its seed, and maximum number per file.
        step_cost: file with the cost of target passes.
        by_category: whether to show the categories of each file.
        json, html: files of the results.
        drafting: option group for drafts.

    Raises:
        UsageError: an option would have no effect.
    """

    traces: tuple[str, ...] = option.option(
        option.REQUIRED, "recordings: .jsonl files with one row per line, or .json lists", kinds.FILE_NAME, several=True
    )
    tokenizer: str | None = option.option(
        None, "tokenizer of the model, for rows that hold text", kinds.name(metavar="PATH|ID")
    )
    jobs: int | None = option.option(None, "number of processes; default: one per core", kinds.whole(1))
    method: str | None = _drafting(
        None,
        "methods, see `speculant methods`; peer:draftretriever and peer:arctic, if installed; default: mix",
        kinds.name(metavar="NAME,..."),
    )
    nodes: tuple[int | Literal["auto"], ...] = _drafting(
        (64,),
        "maximum tokens per draft, one or more numbers such as 5,20,64; auto: what decoding would choose "
        "by --step-cost; default: 64",
        kinds.comma_separated(kinds.NODES),
    )
    chain: bool = _drafting(False, "draft chains, the only shape that vLLM verifies", kinds.FLAG)
    tree: bool = _drafting(False, "draft trees, the default; with --chain, both", kinds.FLAG)
    unite: str = _drafting(
        "",
        "also replay mix and suffix combined with a head whose acceptance is recorded in the files",
        kinds.name(metavar="recorded:NAME"),
    )
    keep_memory: bool = _drafting(
        True, "keep the memory across the requests of a file; the default", kinds.FLAG, tristate=True
    )
    corpora: tuple[str, ...] = _drafting(
        (),
        "memory to start from, for methods that read its kind; may be repeated",
        kinds.FILE_NAME,
        flag="--corpus",
        several=True,
    )
    order: str = _requests("file", "order of the requests; default: file", kinds.choice("file", SHUFFLED))
    seed: int | None = _requests(None, "seed of --order shuffled; default: 0", kinds.whole(0))
    limit: int | None = _requests(None, "only the first N requests of each file", kinds.whole(1))
    step_cost: str | None = _output(
        None, 'cost of a target pass, {"nodes", "seconds"}: adds the expected speed-up', kinds.FILE_NAME
    )
    by_category: bool = _output(False, "also show the categories of each file", kinds.FLAG)
    json: str | None = _output(None, "write the results as JSON; - prints them instead of the table", kinds.FILE_NAME)
    html: str | None = _output(None, "write a page with charts", kinds.FILE_NAME)
    drafting: DraftingOptions = field(default_factory=DraftingOptions)

    def __post_init__(self) -> None:
        if AUTOMATIC in self.nodes and self.step_cost is None:
            raise UsageError("--nodes auto needs --step-cost FILE, since sizes depend on what passes cost.")
        if self.seed is not None and self.order != SHUFFLED:
            raise UsageError("--seed would be ignored: requests keep the file's order. Add --order shuffled.")

    @property
    def files(self) -> list[str]:
        """The files of recordings, each once."""
        return list(dict.fromkeys(self.traces))

    @property
    def methods(self) -> list[str]:
        """The method names, each once, the user's own drafter last."""
        own = self.drafting.drafter
        named = self.method if self.method is not None else DEFAULT_METHOD if own is None else ""
        return list(dict.fromkeys(name.strip() for name in [*named.split(","), own or ""] if name.strip()))

    @property
    def sizes(self) -> list[int]:
        """The maximum numbers of tokens per draft that are numbers."""
        return [size for size in self.nodes if isinstance(size, int)]

    @property
    def shapes(self) -> tuple[str, ...]:
        """The shapes of drafts."""
        return (*(["tree"] if self.tree or not self.chain else []), *(["chain"] if self.chain else []))


@dataclass(frozen=True, slots=True)
class Trace:
    """A file's recordings in replay order, with the file's name in results."""

    name: str
    recordings: Sequence[Recording]
