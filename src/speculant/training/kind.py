"""The training of one kind of heads, or of draft models: creating, training and saving them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from speculant.core.references import load_object
from speculant.drafters.heads.kind import HeadTraining
from speculant.registry.settings import Setting, find_name

if TYPE_CHECKING:  # importing torch would delay `speculant train --help`
    from torch import nn

    from speculant.drafters.heads.head import TargetParts
    from speculant.drafters.heads.training.recipe import Recipe
    from speculant.training.features import Features
    from speculant.training.settings import TrainSettings
    from speculant.training.texts import Int64, Texts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingKind(HeadTraining):
    """A kind of heads with its training, or draft models; see `HeadTraining`.

    Attributes:
        name: as in `Format.kind`.
        load: function that loads a trained one to start from, given its folder or hub id, the kind's name, the target,
            the target's tokenizer and the frequency of each token in the texts.
        features: function that returns the batches of texts, see `training.features.head_features`.
        draft_model: whether it is a separate model, saved with the target's tokenizer, rather than a head.
        decoder_only: see `HeadKind`.
    """

    name: str
    load: str = "speculant.training.trained:load_trained_head"
    features: str = "speculant.training.features:head_features"
    draft_model: bool = False
    decoder_only: str = ""

    @property
    def settings(self) -> dict[str, Setting]:
        """What users may set of a new one, by name."""
        return {name: Setting(name, type(default), default) for name, default in self.options.items()}

    @property
    def title(self) -> str:
        """What it is called in messages about its settings."""
        return f"the kind '{self.name}'"

    @property
    def noun(self) -> str:
        """The noun for messages."""
        return "draft model" if self.draft_model else "head"

    @property
    def plural(self) -> str:
        """The plural noun for messages."""
        return "draft models" if self.draft_model else f"heads of kind {self.name}"

    def new_head(
        self,
        target: TargetParts,
        depth: int | None = None,
        *,
        counts: Int64 | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
        like: str | None = None,
    ) -> nn.Module:
        """Return a head with new weights.

        Args:
            target: target of the head.
            depth: depth to train; None for the kind's default.
            counts: Int64[V], frequency of each token in the texts; None for equal frequencies.
            options: options of the kind.
            like: a model whose architecture a new draft model gets; None for heads.

        Raises:
            UsageError: there is no such option.
        """
        given: dict[str, Any] = {find_name(self.title, self.options, name): value for name, value in options.items()}
        if self.parts:
            given[self.parts] = depth or self.depth
        if self.counts:
            given["counts"] = _equal_counts(target) if counts is None else counts
        if like is not None:
            given["like"] = like
        built: nn.Module = load_object(self.build)(target, **given)
        return built

    def new_recipe(self, head: Any, depth: int) -> Recipe:
        """Return the recipe of a head for depths 1 to `depth`."""
        recipe: Callable[[Any, int], Recipe] = load_object(self.recipe)
        return recipe(head, depth)

    def load_head(self, source: str, target: TargetParts, tokenizer: Any, *, counts: Int64 | None = None) -> nn.Module:
        """Load a trained head or draft model from a folder or the hub.

        Args:
            source: the folder or hub id.
            target: target of the head.
            tokenizer: the target's, or None.
            counts: as for `new_head`.

        Raises:
            UsageError: it is of another kind.
            SpeculantError: it cannot be loaded, or does not match the target.
        """
        load: Callable[[str, str, TargetParts, Any, Int64], nn.Module] = load_object(self.load)
        return load(source, self.name, target, tokenizer, _equal_counts(target) if counts is None else counts)

    def open_features(
        self, model: Any, target: Any, texts: Texts, head: Any, settings: TrainSettings, depth: int, before: Any = ()
    ) -> Features:
        """Return the batches of texts; for the arguments see `training.features.head_features`."""
        opened: Features = load_object(self.features)(model, target, texts, head, settings, depth, before)
        return opened

    def save_head(self, head: nn.Module, folder: Path, target: TargetParts) -> None:
        """Write a head's config and weights into a folder."""
        load_object(self.save)(head, folder, target)


def _equal_counts(target: TargetParts) -> Int64:
    import numpy as np  # imported here: `speculant train --help` does not need it

    return np.ones(target.vocabulary, np.int64)
