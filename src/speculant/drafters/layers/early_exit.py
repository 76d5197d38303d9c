"""LayerSkip: the first layers of the target draft, through its final norm and its head: `early-exit`.

Elhoushi et al.: "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding", ACL 2024, arXiv 2404.16710.
Their checkpoints, such as facebook/layerskip-llama2-7B, are plain Llama checkpoints whose early layers were trained to
exit: load one as any other model. With other checkpoints few drafts are accepted. The exit is a setting, since it is
not part of these checkpoints; the authors run layerskip-llama2-7B with layer=8 and 6 tokens a draft (stop=fixed,
length=6). The target's cache serves the draft, as in the paper; there, the target's pass also goes on from the drafted
rows of the first layers, which are computed again here.
"""

from __future__ import annotations

from dataclasses import dataclass

from speculant.drafters.layers.drafter import LayerDrafter
from speculant.drafters.layers.subsets import check_layers, first_layers
from speculant.drafters.models.shapes import Chain
from speculant.drafters.models.tree_acceptance import LevelAcceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExitSettings:
    """Settings of `early-exit`.

    Attributes:
        layer: how many of the first decoder layers draft; none for a third of them.
        stop: what ends a chain before the budget does: none, fixed, heuristic, confidence or entropy.
        threshold: of "confidence" (default 0.4) and "entropy" (default 0.3).
        length: tokens of a fixed draft, and of the schedule's first one.
    """

    layer: int | None = None
    stop: str = "confidence"
    threshold: float | None = None
    length: int = 6


class EarlyExitDrafter(LayerDrafter):
    """Chains drafted by the first layers: `early-exit`."""

    def __init__(self, *, layers: int, settings: EarlyExitSettings | None = None) -> None:
        """Take the settings.

        Args:
            layers: decoder layers of the target; 0 where none can be left out.
            settings: None for the defaults.

        Raises:
            UnsupportedError: no layers of the target can be left out.
            UsageError: a setting is out of range.
        """
        s, count = settings or EarlyExitSettings(), check_layers(layers)
        number = max(1, round(count / 3)) if s.layer is None else s.layer
        acceptance = LevelAcceptance()
        super().__init__(
            first_layers(count, number, name="layer"), lambda: Chain(acceptance, s.stop, s.threshold, s.length)
        )
