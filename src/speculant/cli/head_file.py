"""The checkpoint that --head names: read before the model, so that a wrong one does not cost the loading of that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.terminal import quick_imports, say, waiting

if TYPE_CHECKING:
    from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
    from speculant.drafters.heads.checkpoints.formats import Format
    from speculant.drafters.heads.drafter import LoadedHead


@dataclass(frozen=True, slots=True, eq=False)
class HeadFile:
    """A checkpoint and its format, without a target."""

    checkpoint: Checkpoint
    format: Format

    def open(self, model: Any) -> LoadedHead:
        """Return the head on a target.

        Raises:
            UnsupportedError: it belongs to another target; the message says what differs.
        """
        from speculant.api.heads import open_head

        return open_head(self.checkpoint, model)


def read_head(source: str) -> HeadFile:
    """Read a head's checkpoint.

    Args:
        source: a folder, or a hub id.

    Raises:
        ModelNotFoundError: there is none, or it is damaged.
        UnsupportedError: its format is unknown.
    """
    if not Path(source).exists():
        say(f"there is no folder {source} here; asking the hub, which may take a while.")
    with waiting("loading PyTorch"), quick_imports():
        from speculant.drafters.heads.checkpoints.checkpoint import read_checkpoint
        from speculant.drafters.heads.checkpoints.formats import find_format
    with waiting(f"loading {source}"):
        checkpoint = read_checkpoint(source)
    return HeadFile(checkpoint, find_format(checkpoint))


def head_title(source: str) -> str:
    """Return what people call a head: a hub id, or a folder without the path to it."""
    return Path(source).resolve().name if Path(source).exists() else source
