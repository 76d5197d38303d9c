"""`speculant corpus build --kind mix-base`: reads sources of any size in bounded memory and builds a frozen base.

Documents go to a `BaseBuilder`, which keeps them on disk, in a work folder next to the output. The position in the
sources and the builder's state are stored there at intervals, so that the same command continues after an interruption.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from speculant import __version__
from speculant.core.errors import FileError, TokenizerError, UsageError
from speculant.corpus.base_plan import BaseSettings, open_work
from speculant.corpus.console import Console
from speculant.corpus.encoding import RowEncoder
from speculant.corpus.exclusions import Exclusions, read_exclusions
from speculant.corpus.rejected import Rejected
from speculant.corpus.rows import CorpusRow, batches
from speculant.corpus.sources import TextSource, read_source
from speculant.corpus.work_folder import WorkFolder

if TYPE_CHECKING:
    from speculant.drafters.mix.base_builder import BaseBuilder

INTERVAL = 10.0  # seconds between two stored states
SCORES_SHARE = 4  # a network takes at most 1 / SCORES_SHARE of the file
HEADER = 4096  # bytes of the file besides its lines and the description of the sources


@dataclass(slots=True)
class Position:
    """The reading position in the sources.

    Attributes:
        source, file, place: the last learned row; reading continues after it.
        tallies: for each source: documents and tokens learned, documents excluded.
        left_out: unusable files and rows.
        refused: conversations that the chat template rejected.
        builder: the builder's state.
    """

    tallies: list[dict[str, int]]
    source: int = 0
    file: int = 0
    place: int = 0
    left_out: int = 0
    refused: int = 0
    builder: dict[str, Any] | None = field(default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSummary:
    """A summary of a built base.

    Attributes:
        tokens: number of tokens of its texts.
        sources: header entry of each source.
        entries: number of successors.
        lacking, surplus: successors omitted because lines were full, and beyond 16 per context.
        size: bytes of the file.
        network: number of tokens with their own vectors, and its bytes; None if there is none.
        refused: conversations that the chat template rejected.
    """

    tokens: int
    sources: Sequence[Mapping[str, Any]]
    entries: int
    lacking: int
    surplus: int
    size: int
    network: tuple[int, int] | None
    refused: int


def build_base(
    path: Path,
    sources: Sequence[TextSource],
    tokenizer: Any,
    settings: BaseSettings,
    *,
    rejected: Rejected,
    console: Console,
    restart: bool = False,
) -> BuildSummary:
    """Build a base, continuing unfinished work, and write it.

    Args:
        path: path of the base.
        sources: its texts.
        tokenizer: tokenizer of the base's model.
        settings: settings of the base.
        rejected: receives what cannot be used.
        console: shows messages and progress.
        restart: whether to drop unfinished work.

    Raises:
        UsageError: the sources have no text, or the unfinished work for this output is from another command.
        FileError: a source can no longer be read, or the disk is full. The work is kept.
    """
    from speculant.drafters.mix.base import write_base
    from speculant.drafters.mix.base_builder import BaseBuilder
    from speculant.drafters.mix.score_training import training_tokens

    work, sources, state = open_work(path, settings, sources, restart=restart)
    try:
        position = Position([{"documents": 0, "tokens": 0, "excluded": 0} for _ in sources])
        if state is not None:
            position = Position(**state)
            rejected.count = position.left_out
            read = sum(tally["tokens"] for tally in position.tallies)
            console.say(f"continuing the unfinished work in {work.path}: {read:,} tokens were read before.")
        exclusions = read_excluded_texts(settings.exclude, tokenizer, rejected, console)
        encoder = RowEncoder(tokenizer, vocabulary=settings.vocabulary, exclusions=exclusions)
        encoder.refused = position.refused
        builder = BaseBuilder(work.data, vocabulary=settings.vocabulary, state=position.builder)
        reading = SourceReading(sources, encoder, builder, work, rejected, console)
        reading.run(position, settings.vocabulary)
        if not builder.tokens:
            raise UsageError(without_tokens(position))
        facts = describe_base(settings, sources, position)
        room = settings.budget - HEADER - len(json.dumps(facts))
        with console.progress("training", training_tokens(builder.tokens), "tokens") as advance:
            scorer = builder.train_scorer(room // SCORES_SHARE, advance)
        room -= sum(array.nbytes for array in scorer or ())
        with console.progress("counting", builder.tokens, "tokens") as advance:
            built = builder.build(room, advance)
        facts |= {"tokens": builder.tokens, "entries": built.entries}
        vocabulary, fingerprint = settings.vocabulary, settings.tokenizer
        write_base(path, built.lines, scorer, vocabulary=vocabulary, tokenizer=fingerprint, facts=facts)
        work.remove()
    except KeyboardInterrupt:
        console.say(
            f"interrupted. All but the last {INTERVAL:.0f} seconds of what was read is kept in {work.path}: give the "
            "same command again to continue, or add --restart to begin anew."
        )
        raise
    except (UsageError, TokenizerError):  # the same command would fail again
        work.remove()
        raise
    except (FileError, OSError) as error:
        reason = str(error) if isinstance(error, FileError) else f"{error.strerror or error}."
        raise FileError(
            f"{reason} The work so far is kept in {work.path}: give the same command again to continue."
        ) from error
    finally:
        work.close()
    return BuildSummary(
        tokens=builder.tokens,
        sources=facts["sources"],
        entries=built.entries,
        lacking=max(0, built.dropped - built.surplus),
        surplus=built.surplus,
        size=path.stat().st_size,
        network=None if scorer is None else (scorer.tables.shape[1] - 1, sum(array.nbytes for array in scorer)),
        refused=encoder.refused,
    )


class SourceReading:
    """Reads the contents of sources into a builder."""

    def __init__(
        self,
        sources: Sequence[TextSource],
        encoder: RowEncoder,
        builder: BaseBuilder,
        work: WorkFolder,
        rejected: Rejected,
        console: Console,
    ) -> None:
        self._sources, self._encoder, self._builder = sources, encoder, builder
        self._work, self._rejected, self._console = work, rejected, console
        self._saved = time.monotonic()

    def run(self, position: Position, vocabulary: int) -> None:
        """Read the sources from a position on, storing positions at intervals and at the end.

        Raises:
            FileError: a source cannot be read, or the disk is full.
        """
        sizes = [source.size for source in self._sources]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        with self._console.progress("reading", total, "bytes", done=bytes_before(self._sources, position)) as advance:
            for number in range(position.source, len(self._sources)):
                if number > position.source:
                    position.source, position.file, position.place = number, 0, 0
                rows = read_source(
                    self._sources[number],
                    vocabulary=vocabulary,
                    advance=advance,
                    reject=self._rejected,
                    file=position.file,
                    skip=position.place,
                )
                for batch in batches(rows, size_of):
                    self._learn(self._sources[number], [without_blanks(row) for _, row in batch], position)
                    position.file, position.place = batch[-1][0], batch[-1][1].place
                    if time.monotonic() - self._saved >= INTERVAL:
                        self._save(position)
            position.source = len(self._sources)
            self._save(position)

    def _learn(self, source: TextSource, rows: Sequence[CorpusRow], position: Position) -> None:
        tally = position.tallies[position.source]
        for encoded in self._encoder.encode(rows):
            if encoded.excluded:
                tally["excluded"] += len(encoded.documents)
                continue
            for ids in encoded.documents:
                self._builder.add(np.asarray(ids, np.int32), weight=source.weight)
                tally["documents"] += 1
                tally["tokens"] += len(ids)

    def _save(self, position: Position) -> None:
        position.left_out, position.refused = self._rejected.count, self._encoder.refused
        position.builder = self._builder.checkpoint()
        self._work.save(asdict(position))
        self._saved = time.monotonic()


def read_excluded_texts(
    paths: Sequence[Path], tokenizer: Any, reject: Callable[[str], object], console: Console
) -> Exclusions | None:
    """Read the exclusions of files; None without files.

    Raises:
        UsageError: the files have no text that is long enough.
        FileError: one cannot be read.
    """
    if not paths:
        return None
    with console.progress("reading what to exclude", sum(path.stat().st_size for path in paths), "bytes") as advance:
        found = read_exclusions(paths, tokenizer, advance=advance, reject=reject)
    if not len(found):
        raise UsageError(
            f"the files to exclude hold no text of {found.length} tokens, so nothing can be compared with them. Name "
            "files with more text after --exclude."
        )
    return found


def bytes_before(sources: Sequence[TextSource], position: Position) -> int:
    """Return the bytes of the files that have been read."""
    before = [file.size for source in sources[: position.source] for file in source.files]
    here = [file.size for source in sources[position.source : position.source + 1] for file in source.files]
    return sum(before) + sum(here[: position.file])


def size_of(numbered: tuple[int, CorpusRow]) -> int:
    """Return the size of a source's row, in characters or ids."""
    return 1 + sum(map(len, numbered[1].documents))


def without_blanks(row: CorpusRow) -> CorpusRow:
    """Return a row without its blank documents."""
    kept = [each for each in row.documents if each and not (isinstance(each, str) and each.isspace())]
    return row if len(kept) == len(row.documents) else replace(row, documents=kept, chat=row.chat if kept else None)


def without_tokens(position: Position) -> str:
    """Return why nothing was learned."""
    excluded = sum(tally["excluded"] for tally in position.tallies)
    if excluded:
        return f"all {excluded} documents share texts with the files to exclude. Name other sources."
    return "the sources hold no text. Name files with text in them."


def describe_base(settings: BaseSettings, sources: Sequence[TextSource], position: Position) -> dict[str, Any]:
    """Return the header's description of a base's texts."""
    origins: list[dict[str, Any]] = []
    for source, tally in zip(sources, position.tallies, strict=True):
        origins.append({"name": source.name, "weight": source.weight, **tally})
        if source.dataset is not None:
            origins[-1]["revision"] = source.dataset.revision
    made = {"date": datetime.now(timezone.utc).date().isoformat(), "version": __version__}
    return {"sources": origins, "license": settings.license, "source": settings.source, "made": made}
