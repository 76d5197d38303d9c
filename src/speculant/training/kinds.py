"""The table of kinds of heads that can be trained."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.core.errors import UsageError
from speculant.registry.method import load_object

if TYPE_CHECKING:  # torch would make `speculant train --help` wait
    from torch import nn

    from speculant.drafters.heads.head import TargetParts
    from speculant.training.recipe import Recipe
    from speculant.training.texts import Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How heads of one kind are made, trained and saved. Its parts are "module:name", imported when they are used.

    Attributes:
        name: as `Format.kind` names it.
        build: the function that returns a new head for a target; its keyword arguments are the kind's options. If it
            takes `counts`, it is given how often each token stands in the texts, Int64[V].
        recipe: the class of the recipe, called with the head and a depth, of at most the head's own.
        save: the function that writes head, folder and target in the public layout.
        depth: depths trained by default.
        parts: the option of `build` that is the depth, for heads that have parts for each; None if they have not.
        measured: depths at which acceptance is measured, if the head can draft as deep.
        loss: the divergence that is trained on by default.
        feature_weight: of the recipe's own loss, such as the distance of hidden states.
        decay: of the weights of deeper losses, per depth.
        lr: the learning rate.
        searches_tree: whether its static tree is searched on held-out texts and kept with the head.
        source: paper and arXiv id.
    """

    name: str
    build: str
    recipe: str
    save: str
    depth: int
    parts: str | None = None
    measured: int = 4
    loss: str = "kl"
    feature_weight: float = 0.0
    decay: float = 0.8
    lr: float = 1e-3
    searches_tree: bool = False
    source: str

    def options(self) -> dict[str, Any]:
        """Return the options of new heads, with their defaults: numbers, switches and words."""
        taken = inspect.signature(load_object(self.build)).parameters.values()
        plain = [each for each in taken if isinstance(each.default, bool | int | float | str)]
        return {each.name: each.default for each in plain if each.name != self.parts}

    def new_head(
        self,
        target: TargetParts,
        depth: int | None = None,
        *,
        counts: Int64 | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> nn.Module:
        """Return a head with new weights.

        Args:
            target: of the head.
            depth: to be trained; None for the kind's default.
            counts: Int64[V], how often each token stands in the texts; None if all do alike.
            options: of the kind.

        Raises:
            UsageError: there is no such option.
        """
        known = self.options()
        for name in options or {}:
            if name not in known:
                some = ", ".join(known) or "none"
                raise UsageError(f"heads of kind {self.name} have no option {name!r}; there are: {some}.")
        import numpy as np  # here: `speculant train --help` needs none

        build = load_object(self.build)
        given: dict[str, Any] = {self.parts: depth or self.depth} if self.parts else {}
        if "counts" in inspect.signature(build).parameters:
            given["counts"] = np.ones(target.vocabulary, np.int64) if counts is None else counts
        built: nn.Module = build(target, **given, **options or {})
        return built

    def new_recipe(self, head: Any, depth: int) -> Recipe:
        """Return the recipe of a head for depths 1 to `depth`."""
        recipe: Callable[[Any, int], Recipe] = load_object(self.recipe)
        return recipe(head, depth)

    def save_head(self, head: nn.Module, folder: Path, target: TargetParts) -> None:
        """Write a head's config and weights into a folder."""
        load_object(self.save)(head, folder, target)


_BUILDERS = "speculant.training.builders."
_RECIPES = "speculant.training.recipes."
_CHECKPOINTS = "speculant.drafters.heads.checkpoints."

KINDS = (
    Kind(
        name="eagle",
        build=_BUILDERS + "eagle:new_eagle",
        recipe=_RECIPES + "eagle:EagleRecipe",
        save=_CHECKPOINTS + "eagle:save",
        depth=1,
        loss="0.1kl",
        feature_weight=1.0,
        source="Li et al. 2024, arXiv 2401.15077; HASS with several depths: Zhang et al. 2025, arXiv 2408.15766",
    ),
    Kind(
        name="eagle3",
        build=_BUILDERS + "eagle3:new_eagle3",
        recipe=_RECIPES + "eagle3:Eagle3Recipe",
        save=_CHECKPOINTS + "eagle3:save",
        depth=4,
        source="Li et al. 2025, arXiv 2503.01840",
    ),
    Kind(
        name="p-eagle",
        build=_BUILDERS + "eagle3:new_p_eagle",
        recipe=_RECIPES + "p_eagle:PEagleRecipe",
        save=_CHECKPOINTS + "eagle3:save",
        depth=4,
        parts="depth",
        source="P-EAGLE, of vLLM's speculators",
    ),
    Kind(
        name="medusa",
        build=_BUILDERS + "blocks:new_medusa",
        recipe=_RECIPES + "medusa:MedusaRecipe",
        save=_CHECKPOINTS + "medusa:save",
        depth=4,
        parts="heads",
        searches_tree=True,
        source="Cai et al. 2024, arXiv 2401.10774",
    ),
    Kind(
        name="hydra",
        build=_BUILDERS + "blocks:new_hydra",
        recipe=_RECIPES + "hydra:HydraRecipe",
        save=_CHECKPOINTS + "hydra:save",
        depth=4,
        parts="heads",
        searches_tree=True,
        source="Ankner et al. 2024, arXiv 2402.05109",
    ),
    Kind(
        name="mlp",
        build=_BUILDERS + "blocks:new_mlp",
        recipe=_RECIPES + "mlp:MLPRecipe",
        save=_CHECKPOINTS + "mlp:save",
        depth=4,
        parts="steps",
        lr=2e-3,
        source="Wertheimer et al. 2024, arXiv 2404.19124",
    ),
    Kind(
        name="blockwise",
        build=_BUILDERS + "blocks:new_blockwise",
        recipe=_RECIPES + "blockwise:BlockwiseRecipe",
        save=_CHECKPOINTS + "blockwise:save",
        depth=4,
        parts="heads",
        source="Stern et al. 2018, arXiv 1811.03115",
    ),
    Kind(
        name="hydra++",
        build=_BUILDERS + "blocks:new_hydra_plus",
        recipe=_RECIPES + "hydra:HydraRecipe",
        save=_CHECKPOINTS + "hydra:save",
        depth=4,
        parts="heads",
        searches_tree=True,
        source="Ankner et al. 2024, arXiv 2402.05109, section 4",
    ),
    Kind(
        name="dflash",
        build=_BUILDERS + "dflash:new_dflash",
        recipe=_RECIPES + "dflash:DFlashRecipe",
        save=_CHECKPOINTS + "dflash:save",
        depth=4,
        source="Chen et al. 2026, arXiv 2602.06036",
    ),
    Kind(
        name="glide",
        build=_BUILDERS + "text_heads:new_glide",
        recipe=_RECIPES + "glide:GlideRecipe",
        save=_CHECKPOINTS + "glide:save",
        depth=5,
        loss="ce",
        source="Du et al. 2024, arXiv 2402.02082",
    ),
    Kind(
        name="pass",
        build=_BUILDERS + "text_heads:new_lookahead",
        recipe=_RECIPES + "lookahead:LookaheadRecipe",
        save=_CHECKPOINTS + "lookahead:save",
        depth=5,
        loss="ce",
        lr=1e-2,
        source="Monea et al. 2023, arXiv 2311.13581",
    ),
    Kind(
        name="specdec",
        build=_BUILDERS + "text_heads:new_specdec",
        recipe=_RECIPES + "specdec:SpecDecRecipe",
        save=_CHECKPOINTS + "specdec:save",
        depth=8,
        parts="block",
        loss="ce",
        source="Xia et al. 2023, arXiv 2203.16487",
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
