"""The table of kinds of heads that can be trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.core.errors import UsageError
from speculant.registry.method import load_object

if TYPE_CHECKING:  # torch would make `speculant train --help` wait
    from torch import nn

    from speculant.drafters.heads.head import TargetParts
    from speculant.training.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How heads of one kind are made, trained and saved. Its parts are "module:name", imported when they are used.

    Attributes:
        name: as `Format.kind` names it.
        build: the function that returns a new head for a target.
        recipe: the class of the recipe, called with the head and the depth that is trained.
        save: the function that writes head, folder and target in the public layout.
        depth: depths trained by default.
        deepest: what they may be at most; None for any number.
        measured: depths at which acceptance is measured, if the head can draft as deep.
        loss: the divergence that is trained on by default.
        feature_weight: of the recipe's own loss, such as the distance of hidden states.
        decay: of the weights of deeper losses, per depth.
        lr: the learning rate.
        source: paper and arXiv id.
    """

    name: str
    build: str
    recipe: str
    save: str
    depth: int
    deepest: int | None = None
    measured: int = 4
    loss: str = "kl"
    feature_weight: float = 0.0
    decay: float = 0.8
    lr: float = 1e-3
    source: str

    def new_head(self, target: TargetParts) -> nn.Module:
        """Return a head with new weights."""
        built: nn.Module = load_object(self.build)(target)
        return built

    def new_recipe(self, head: Any, depth: int) -> Recipe:
        """Return the recipe of a head for depths 1 to `depth`."""
        recipe: Callable[[Any, int], Recipe] = load_object(self.recipe)
        return recipe(head, depth)

    def save_head(self, head: nn.Module, folder: Path, target: TargetParts) -> None:
        """Write a head's config and weights into a folder."""
        load_object(self.save)(head, folder, target)


KINDS = (
    Kind(
        name="eagle",
        build="speculant.training.builders.eagle:new_eagle",
        recipe="speculant.training.recipes.eagle:EagleRecipe",
        save="speculant.drafters.heads.checkpoints.eagle:save",
        depth=1,
        loss="0.1kl",
        feature_weight=1.0,
        source="Li et al. 2024, arXiv 2401.15077; HASS with several depths: Zhang et al. 2025, arXiv 2408.15766",
    ),
)


def find_kind(name: str) -> Kind:
    """Return the kind of that name.

    Raises:
        UsageError: there is none.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise UsageError(f"there is no kind of head {name!r} to train; there are {', '.join(each.name for each in KINDS)}.")
