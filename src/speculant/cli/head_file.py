"""The checkpoint named by --head, read before the model, so that a wrong one is found before the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.api.loading import bundled_head_folder, means_bundled
from speculant.cli.terminal import importing, say, waiting
from speculant.core.errors import ModelNotFoundError, SpeculantError
from speculant.core.hub import asking, why_missing

if TYPE_CHECKING:
    from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
    from speculant.drafters.heads.checkpoints.formats import Format
    from speculant.drafters.heads.drafter import LoadedHead
    from speculant.registry import Method


@dataclass(frozen=True, slots=True, eq=False)
class HeadFile:
    """A checkpoint and its format, without a target."""

    checkpoint: Checkpoint
    format: Format

    def check(self, source: str) -> None:
        """Check with a target's config that the head fits it, as far as sizes tell.

        Args:
            source: the target's folder or hub id.

        Raises:
            UnsupportedError: it belongs to another target; the message says what differs.
        """
        from speculant.api.loading import load_config
        from speculant.drafters.heads.checkpoints.formats import check_sizes

        try:
            config = load_config(source)
        except SpeculantError:  # for example an adapter alone; loading will tell whether there is a model
            return
        names = "hidden_size", "vocab_size", "num_hidden_layers"
        hidden, vocabulary, layers = (getattr(config, name, None) for name in names)
        if hidden is not None and vocabulary is not None and layers is not None:
            hidden = getattr(config, "word_embed_proj_dim", hidden)  # OPT's width before its output projection
            check_sizes(self.checkpoint, hidden_size=hidden, vocabulary=vocabulary, layers=layers)

    def open(self, model: Any) -> LoadedHead:
        """Return the head on a target.

        Raises:
            UnsupportedError: it belongs to another target; the message says what differs.
        """
        from speculant.api.heads import open_head

        return open_head(self.checkpoint, model)


def find_head(source: str, method: Method | None = None) -> str:
    """Return the folder or hub id of a head; "bundled" names the bundled model's.

    Args:
        source: the name given by the user.
        method: method to draft with; None for the default.

    Raises:
        ModelNotFoundError: there is no such folder, and the name is no hub id.
        UsageError: none of the bundled heads suits the method.
    """
    if means_bundled(source):
        return str(bundled_head_folder(method))
    if Path(source).is_file():
        raise ModelNotFoundError(f"{source} is a file; name the folder with the head's config and weights.")
    if reason := why_missing(source):
        raise ModelNotFoundError(f"there is no head at {source}: {reason}.")
    return source


def read_head(source: str, method: Method | None = None) -> HeadFile:
    """Read a head's checkpoint.

    Args:
        source: a folder, a hub id, or "bundled".
        method: method to draft with; None for the default.

    Raises:
        ModelNotFoundError: there is no such checkpoint, or it is damaged.
        UnsupportedError: its format is unknown.
        UsageError: none of the bundled heads suits the method.
    """
    found = find_head(source, method)
    if not Path(found).exists():
        say(asking(found))
    with importing("PyTorch"):
        from speculant.drafters.heads.checkpoints.checkpoint import read_checkpoint
        from speculant.drafters.heads.checkpoints.formats import find_format
    with waiting(f"loading {found}"):
        checkpoint = read_checkpoint(found)
    return HeadFile(checkpoint, find_format(checkpoint))
