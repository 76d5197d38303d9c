"""Generate docs/options.md, the reference of all options, from the option groups.

python benchmarks/options_report.py > docs/options.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from speculant.cli.bench_settings import BenchOptions
from speculant.cli.replay_settings import ReplayOptions
from speculant.core.environment import PREFIX
from speculant.options.drafting import DraftingOptions
from speculant.options.hosting import HostingOptions
from speculant.options.kinds import FLAG
from speculant.options.model import ModelOptions
from speculant.options.option import Option, options_of
from speculant.options.retrieval import RetrievalOptions
from speculant.options.sampling import ConstraintOptions, SamplingOptions
from speculant.options.serving import ServingOptions
from speculant.training.files import Files
from speculant.training.settings import TrainSettings

HEAD = """\
# Options

<!-- written by `python benchmarks/options_report.py` -->

All options of the command line with their environment variables. `speculant COMMAND --help` lists those of one command.

Flags take precedence over variables, and variables over the lines of `serve --config FILE`. `serve` reads the variables
of its own options; processes of several kinds may share an environment, but a variable that none of them knows is an
error. A size is a number of bytes or has a unit: `256MB` is decimal, `256MiB` binary. Lists in variables are
comma-separated.
"""


@dataclass(frozen=True, slots=True)
class Page:
    """A section: its title, the commands that take these options, their group, and whether variables set them."""

    title: str
    takers: str
    group: Any
    variables: bool = False


PAGES = (
    Page(
        "The model",
        "All commands that run a model. `bench`, `check`, `serve` and `tune` take it as the argument MODEL.",
        ModelOptions,
        True,
    ),
    Page(
        "Drafting",
        "`generate`, `chat`, `check` and `serve`; also keywords of `Speculator.from_pretrained`.",
        DraftingOptions,
        True,
    ),
    Page("Text", "`generate` and `chat`.", SamplingOptions),
    Page("Structured text", "`generate`, with `pip install 'speculant[structured]'`.", ConstraintOptions),
    Page("Retrieval", "[`rag`](retrieval.md).", RetrievalOptions),
    Page("The server", "`serve`.", ServingOptions, True),
    Page(
        "Drafts inside an engine",
        "[vLLM](vllm.md) and [SGLang](sglang.md), set by variables or a file.",
        HostingOptions,
        True,
    ),
    Page("Benchmarks", "`bench`, in addition to most drafting options.", BenchOptions),
    Page("Replay", "`replay`, in addition to some drafting options.", ReplayOptions),
    Page("Training", "`train KIND`.", TrainSettings),
    Page("Files of a training", "`train KIND`.", Files),
)


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([HEAD, *(section(each) for each in PAGES)])


def section(page: Page) -> str:
    """Return one section as Markdown."""
    options, flags = options_of(page.group).values(), page.group is not HostingOptions
    rows = [row(each, flag=flags, variables=page.variables) for each in options]
    heads = [*(["option"] if flags else []), *(["variable"] if page.variables else []), "meaning"]
    lines = [f"## {page.title}", "", page.takers, "", table_row(heads), table_row(["---"] * len(heads))]
    return "\n".join([*lines, *rows, ""])


def row(option: Option, *, flag: bool, variables: bool) -> str:
    """Return the table row of one option."""
    form = f"{option.flag} {option.kind.metavar}" if option.kind is not FLAG else option.flag
    names = [form, *option.aliases, *([option.off] if option.off else [])]
    if option.tristate:
        names.append(f"--no-{option.flag[2:]}")
    cells = [", ".join(f"`{name}`" for name in names)] if flag else []
    if variables:
        cells.append(f"`{PREFIX}{option.name.upper()}`")
    return table_row([*cells, option.described])


def table_row(cells: list[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(page(), end="")
