"""Static trees in configs of heads: lists of rank paths, as used by Medusa's program and TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Sequence

from speculant.core.errors import UnsupportedError, UsageError
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.static_tree import RankPath, StaticTree
from speculant.drafters.models.tree_acceptance import LevelAcceptance


def read_paths(checkpoint: Checkpoint, name: str, default: Sequence[RankPath], depth: int) -> tuple[RankPath, ...]:
    """Return the tree given by a config, cut to a head's depth, or the default.

    Raises:
        UnsupportedError: it is not a tree.
    """
    given = checkpoint.config.get(name)
    if given is None:
        return tuple(default)
    try:
        paths = tuple(tuple(int(rank) for rank in path) for path in given)
        StaticTree(paths, LevelAcceptance())  # validates the paths
    except (TypeError, ValueError, UsageError) as error:
        raise UnsupportedError(
            f"config.json of the head in {checkpoint.source} has {name} that do not form a draft tree: {error} Remove "
            "them to use the published tree."
        ) from error
    return tuple(path for path in paths if len(path) <= depth)


def write_paths(paths: Sequence[RankPath]) -> list[list[int]]:
    """Return a tree in the form used by configs."""
    return [list(path) for path in paths]
