"""Draft & Verify: the target drafts with some of its layers or sublayers left out: `layer-skip`.

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
class LayerSkipSettings:
    """Settings of `layer-skip`.

    Attributes:
        skipped: decoder layers that are left out, counted from 0, as in 3,5-8, or attention and MLPs of layers, as in
            "attention 1,3; mlp 1-5"; empty for every other layer between the first and the last.
        threshold: a draft ends after the token at which no token has this probability.
        adaptive: whether the threshold follows what is accepted.
        longest: tokens of a draft at most.
    """

    skipped: str = ""
    threshold: float = 0.8
    adaptive: bool = True
    longest: int = 12


class LayerSkipDrafter(LayerDrafter):
    """Chains drafted without the skipped layers or sublayers: `layer-skip`."""

    def __init__(self, *, layers: int, whole_layers: str = "", settings: LayerSkipSettings | None = None) -> None:
        """Take the settings.

        Args:
            layers: decoder layers of the target; 0 where none can be left out.
            whole_layers: why only whole ones can; "" if attention and MLP can be left out separately.
            settings: None for the defaults.

        Raises:
            UnsupportedError: no layers of the target can be left out, or only whole ones.
            UsageError: a setting is out of range.
        """
        s, count = settings or LayerSkipSettings(), check_layers(layers)
        acceptance = LevelAcceptance()
        super().__init__(
            without(parse_skipped(s.skipped, count, whole=whole_layers), count),
            lambda: ConfidenceChain(acceptance, threshold=s.threshold, longest=s.longest, adaptive=s.adaptive),
        )
