"""The plan of a base, which decides whether a command continues the unfinished work of an earlier one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from speculant import __version__
from speculant.core.errors import UsageError
from speculant.corpus.sources import SourceFile, TextSource, stamp
from speculant.corpus.work_folder import WorkFolder, difference

SOURCES, FILES, EXCLUDED = "the sources", "the files", "the excluded files"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSettings:
    """The settings of a base.

    Attributes:
        tokenizer: the fingerprint of the tokenizer.
        template: its chat template; None if it has none.
        vocabulary: V, the number of token ids.
        budget: maximum bytes of the file.
        exclude: files whose texts must not be included.
        license: license of the texts, in the builder's words; None if not given.
        source: their origin, likewise.
    """

    tokenizer: str
    template: str | None
    vocabulary: int
    budget: int
    exclude: tuple[Path, ...] = ()
    license: str | None = None
    source: str | None = None


def make_plan(settings: BaseSettings, sources: Sequence[TextSource]) -> dict[str, Any]:
    """Return everything that affects the result, as JSON; long items are lists of [name, ...].

    Raises:
        FileError: an excluded file cannot be read.
    """
    template = settings.template
    return {
        "Speculant's version": __version__,
        "the tokenizer": settings.tokenizer,
        "the chat template": template and hashlib.blake2b(template.encode(), digest_size=8).hexdigest(),
        "the vocabulary": settings.vocabulary,
        "--budget": settings.budget,
        "--license": settings.license,
        "--source": settings.source,
        SOURCES: [[each.given, each.weight, each.dataset and each.dataset.revision] for each in sources],
        FILES: [_entry(file) for each in sources for file in each.files],
        EXCLUDED: [_entry(stamp(path)) for path in settings.exclude],
    }


def open_work(
    output: Path, settings: BaseSettings, sources: Sequence[TextSource], *, restart: bool
) -> tuple[WorkFolder, list[TextSource], dict[str, Any] | None]:
    """Return the work folder, the sources to read, and the state to continue from; None at the start.

    Args:
        output: the base to build.
        settings: settings of the base.
        sources: the current sources. A dataset continues at the revision at which it was started.
        restart: whether to drop earlier unfinished work.

    Raises:
        UsageError: the folder has the work of another command, or of files that have changed since, or another process
            is building the base.
        FileError: it cannot be written, or an excluded file cannot be read.
    """
    plan = make_plan(settings, sources)
    work = WorkFolder(output)
    try:
        earlier = None if restart else work.plan()
        if earlier is None:
            work.begin(plan)
            return work, list(sources), None
        revisions = {given: revision for given, _, revision in earlier[SOURCES] if revision}
        found = [_at_revision(source, revisions.get(source.given)) for source in sources]
        reason = difference(earlier, make_plan(settings, found))
        if reason:
            raise UsageError(
                f"{work.path} holds the unfinished work of another command for {output}: {reason}. Give that command "
                "again to continue it, name another output, or add --restart to drop the work."
            )
        return work, found, work.state()
    except BaseException:
        work.close()
        raise


def _entry(file: SourceFile) -> list[Any]:
    return [str(file.path.absolute()), file.size, file.modified]


def _at_revision(source: TextSource, revision: str | None) -> TextSource:
    if source.dataset is None or revision is None:
        return source
    return replace(source, dataset=replace(source.dataset, revision=revision))
