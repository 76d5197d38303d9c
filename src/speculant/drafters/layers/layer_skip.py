"""The method `layer-skip`: the target drafts without some of its layers or sublayers (Draft & Verify).

Zhang et al.: "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative Decoding", ACL 2024,
arXiv 2309.08168. What to skip, attention and MLP separately as in the paper or whole layers, is found once per model:
`speculant tune-layers`, or `speculant.api.layer_tuning`. The stop rule is in `stopping`.
"""

from __future__ import annotations

from dataclasses import dataclass

from speculant.drafters.layers.drafter import LayerDrafter
from speculant.drafters.layers.stopping import ConfidenceChain
from speculant.drafters.layers.subsets import check_layers, parse_skipped, without
from speculant.drafters.models.tree_acceptance import LevelAcceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSkipMethodSettings:
    """Settings of `layer-skip`.

    Attributes:
        skipped: decoder layers that are left out, counted from 0, as in 3,5-8, or attention and MLPs of layers, as in
            "attention 1,3; mlp 1-5"; empty for every other layer between the first and the last.
        threshold: a draft ends after the first position at which no token has this probability.
        adaptive: whether the threshold follows acceptance.
        longest: maximum tokens per draft.
    """

    skipped: str = ""
    threshold: float = 0.8
    adaptive: bool = True
    longest: int = 12


class LayerSkipDrafter(LayerDrafter):
    """Drafts chains without the skipped layers or sublayers."""

    def __init__(self, *, layers: int, whole_layers: str = "", settings: LayerSkipMethodSettings | None = None) -> None:
        """Create the drafter.

        Args:
            layers: number of decoder layers of the target; 0 if none can be left out.
            whole_layers: the reason why only whole layers can be left out; "" if attention and MLP can be separately.
            settings: None for the defaults.

        Raises:
            UnsupportedError: no layers of the target can be left out, or only whole ones.
            UsageError: a setting is out of range.
        """
        s, count = settings or LayerSkipMethodSettings(), check_layers(layers)
        acceptance = LevelAcceptance()
        super().__init__(
            without(parse_skipped(s.skipped, count, whole=whole_layers), count),
            lambda: ConfidenceChain(acceptance, threshold=s.threshold, longest=s.longest, adaptive=s.adaptive),
        )
