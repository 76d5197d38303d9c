"""SPEED: as many tokens ahead as a pipeline of layer groups would have in flight: `speed`.

Hooper et al.: "SPEED: Speculative Pipelined Execution for Efficient Decoding", 2023, arXiv 2310.12072. Its models run
the same few layers in cycles. A pipeline stage is a pass through the shared layers; an early stage's prediction of the
next token enters the pipeline while the unfinished token goes on, and what follows a wrong prediction is flushed. Since
all stages use the same weights, one read of them from memory serves all G tokens in flight.

Without parameter sharing, G tokens at G stages need all weights, and on one device nothing is gained by having them at
different stages. So here the target's layers are divided into G groups, the first group's exit drafts the G - 1 tokens
that would follow the unfinished one in the pipeline, and one pass verifies them. Parameter sharing would add that these
G - 1 passes through the first group cost no further reads of weights. Where the target samples, the tokens are drawn
from the exit's distribution; the paper decodes greedily.
"""

from __future__ import annotations

from dataclasses import dataclass

from speculant.core.errors import UsageError
from speculant.drafters.layers.drafter import LayerDrafter
from speculant.drafters.layers.subsets import check_layers, first_layers
from speculant.drafters.models.shapes import Chain
from speculant.drafters.models.tree_acceptance import LevelAcceptance

USUAL_GROUPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SPEEDSettings:
    """Settings of `speed`.

    Attributes:
        groups: into how many groups the decoder layers are divided; none for 4, or a layer each where there are fewer.
    """

    groups: int | None = None


class SPEEDDrafter(LayerDrafter):
    """A chain drafted by the first group of layers: `speed`."""

    def __init__(self, *, layers: int, settings: SPEEDSettings | None = None) -> None:
        """Take the settings.

        Args:
            layers: decoder layers of the target; 0 where none can be left out.
            settings: None for the defaults.

        Raises:
            UnsupportedError: no layers of the target can be left out.
            UsageError: there are more groups than layers, or fewer than two.
        """
        count = check_layers(layers)
        given = (settings or SPEEDSettings()).groups
        groups = min(USUAL_GROUPS, count) if given is None else given
        if not 2 <= groups <= count:
            raise UsageError(f"groups must be from 2 to the model's {count} layers, not {groups}.")
        acceptance = LevelAcceptance()
        super().__init__(
            first_layers(count, count // groups, name="the first group"),
            lambda: Chain(acceptance, "fixed", length=groups - 1),
        )
