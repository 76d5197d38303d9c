"""`speculant train data`: lets a model write the texts for training its heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.core.errors import UsageError
from speculant.core.user_text import shorten
from speculant.options import kinds, option
from speculant.options.model import ModelOptions

if TYPE_CHECKING:
    from speculant.cli.prompts import Prompt
    from speculant.training.fingerprint import TargetIdentity
    from speculant.training.writing import WritingSettings

HELP = """\
Let a model write the texts on which its heads are trained.

DIR gets shards of token ids, each written completely or not at all: the same command continues an interrupted run with
the first missing shard and gives the same texts. A larger --texts adds to them."""

EXAMPLES = """
speculant train data --model your/model --prompts chats.jsonl --out texts
speculant train data --model your/model --prompts books.txt \\
    --opening 6-24 --texts 5000 --out texts
"""
MIX = "mix"
MAX_ROWS = 64  # rows per shard, unless --rows is given


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """What the model writes, and where."""

    prompts: tuple[str, ...] = option.option(
        option.REQUIRED, "prompts, as for `generate --prompts`", kinds.name(metavar="FILE..."), several=True
    )
    out: str = option.option(option.REQUIRED, "folder for the texts", kinds.name(metavar="DIR"))
    texts: int | None = option.option(None, "number of texts; default: one per prompt", kinds.whole(1))
    new_tokens: int = option.option(256, "maximum new tokens per text; default: 256", kinds.whole(1))
    temperature: str = option.option(
        MIX,
        "0 for greedy, shares as in 0:0.5,1:0.5, or mix (default): half at 0, a quarter each at 0.8 and 1",
        kinds.name(metavar="T|mix"),
    )
    opening: str | None = option.option(
        None,
        "use only the first N to M tokens of a prompt, drawn anew each time it is used",
        kinds.name(metavar="N-M"),
    )
    rows: int | None = option.option(None, "texts written at a time; default: up to 64", kinds.whole(1))
    seed: int = option.option(0, "default: 0", kinds.whole(0))


class DataCommand(Command):
    """The command, with --prompts taking all files up to the next option."""

    lists = ("--prompts",)


def register_data(group: typer.Typer) -> None:
    """Add the command to its group."""
    group.command(
        "data", cls=DataCommand, help=HELP, short_help="let a model write texts to train on", epilog=EXAMPLES
    )(bind(data))


def data(options: DataOptions, model: Annotated[ModelOptions, Take(without=("fast",))]) -> int:
    """Read the prompts and write the shards."""
    from speculant.cli.loading import load, model_name, model_title
    from speculant.cli.loading_checks import check_named
    from speculant.cli.prompts import read_prompts
    from speculant.cli.terminal import count_noun, importing, say

    lengths = parse_opening(options.opening)
    shares = () if options.temperature == MIX else parse_temperatures(options.temperature)
    given = [prompt for path in options.prompts for prompt in read_prompts(path)]
    check_named(ModelOptions(model=model.model))
    with importing("PyTorch and transformers"):
        from speculant.training.workers import find_launched_device

        shares = shares or parse_temperatures(MIX)
    loading = replace(model, device=model.device or find_launched_device())
    target, tokenizer, used = load(loading, needed="texts are written with hidden states of decoder layers")
    from speculant.training.fingerprint import identify
    from speculant.training.writing import WritingSettings

    ids = encode_training_prompts(given, tokenizer, target, say)
    count = options.texts or len(ids)
    settings = WritingSettings(
        texts=count,
        rows=options.rows or rows_of_shards(Path(options.out), count),
        new_tokens=options.new_tokens,
        temperatures=shares,
        opening=lengths,
        seed=options.seed,
    )
    identity = identify(target, tokenizer, name=model_title(model.model), source=model_name(model.model))
    say(f"{count_noun(settings.shards, 'shard')} of {count_noun(settings.rows, 'text')}; threads: {used}.")
    write_shards(target, ids, options.out, settings, identity)
    return 0


def write_shards(
    target: Any, prompts: list[list[int]], out: str, settings: WritingSettings, identity: TargetIdentity
) -> None:
    """Let the model write the missing shards, showing progress, and report what there is.

    Args:
        target: the model.
        prompts: token ids.
        out: folder of the shards.
        settings: what is written.
        identity: fingerprints of the model.
    """
    from speculant.cli.terminal import count_noun, progress, say
    from speculant.training.workers import join_workers
    from speculant.training.writing import write_texts

    with progress("writing", settings.shards, "shards") as advance:
        try:
            written = write_texts(
                target,
                prompts,
                Path(out),
                settings,
                identity,
                workers=join_workers(target.device),
                advance=lambda _tokens: advance(1),
            )
        except KeyboardInterrupt:
            say(f"interrupted; the shards in {out} are complete. The same command continues.")
            raise
    print(f"texts       {written.shards * settings.rows} in {out}, {written.tokens} tokens")
    if written.found:
        print(f"found       {count_noun(written.found, 'shard')} of an earlier run")


def rows_of_shards(out: Path, texts: int) -> int:
    """Return the texts per shard: as in an earlier run, or a number that limits the excess over the requested texts.

    Raises:
        FileError: the manifest of an earlier run cannot be read.
    """
    from speculant.training.shards import read_manifest

    manifest = read_manifest(out) if out.is_dir() else None
    if manifest is not None and "rows" in manifest.get("settings", {}):
        return int(manifest["settings"]["rows"])
    return -(-texts // -(-texts // MAX_ROWS))


def encode_training_prompts(prompts: list[Prompt], tokenizer: Any, model: Any, say: Any) -> list[list[int]]:
    """Return prompts as token ids; chats in the model's template, of several turns only the first.

    Raises:
        UsageError: the model has no tokenizer, or no template for chats.
    """
    if tokenizer is None:
        raise UsageError("the model has no tokenizer to read prompts with. Name a model with tokenizer.json.")
    found: list[list[int]] = []
    for prompt in prompts:
        first = prompt[0] if isinstance(prompt, tuple) else prompt
        if isinstance(first, str):
            found.append(list(tokenizer(first)["input_ids"]))
        elif tokenizer.chat_template:
            text = tokenizer.apply_chat_template(first, tokenize=False, add_generation_prompt=True)
            found.append(list(tokenizer(text, add_special_tokens=False)["input_ids"]))
        else:
            raise UsageError("the prompts are chats, and the model's tokenizer has no chat template.")
    maximum = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    fitting = [ids for ids in found if ids and (maximum is None or len(ids) < maximum)]
    if len(fitting) < len(found):
        say(f"warning: {len(found) - len(fitting)} prompts are empty or too long for the model; they are left out.")
    return fitting


def parse_temperatures(text: str) -> tuple[tuple[float, float], ...]:
    """Parse an option's shares and temperatures.

    Raises:
        UsageError: it is not valid.
    """
    from speculant.training.writing import MIX as SHARES

    if text == MIX:
        return SHARES
    try:
        parts = [part.split(":") for part in text.split(",")]
        if len(parts) == 1 and len(parts[0]) == 1:
            return ((1.0, kinds.read_temperature(text)),)
        return tuple((kinds.FRACTION.read(weight), kinds.read_temperature(value)) for value, weight in parts)
    except ValueError:
        raise UsageError(
            f"--temperature must be mix, a temperature, or shares as in 0:0.5,1:0.5, not '{shorten(text)}'."
        ) from None


def parse_opening(text: str | None) -> tuple[int, int] | None:
    """Parse an option's minimum and maximum length.

    Raises:
        UsageError: it is not valid.
    """
    if text is None:
        return None
    minimum, _, maximum = text.partition("-")
    if not (minimum.isdigit() and (maximum or minimum).isdigit() and 1 <= int(minimum) <= int(maximum or minimum)):
        raise UsageError(f"--opening must be two numbers of tokens as in 6-24, not '{shorten(text)}'.")
    return int(minimum), int(maximum or minimum)
