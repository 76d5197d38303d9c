"""The method `early-exit`: the first layers of the target draft, with its final norm and output head (LayerSkip).

Elhoushi et al.: "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding", ACL 2024, arXiv 2404.16710.
Their checkpoints, such as facebook/layerskip-llama2-7B, are ordinary Llama checkpoints whose early layers were trained
to exit; they load like any other model. With other checkpoints few drafts are accepted, unless an adapter is trained
(`heads.exit`). The exit layer is a setting, since these checkpoints do not contain it; the authors run
layerskip-llama2-7B with layer=8 and 6 tokens per draft (stop=fixed, length=6). Drafts use the target's cache, and the
target's pass continues from the rows of the first layers, as in the paper.

Two earlier methods are settings. `tree=guesses` drafts the tree of Predictive Pipelined Decoding. With `groups`, the
first of G groups of layers drafts the G - 1 tokens that SPEED's pipeline has in flight (Hooper et al. 2023, arXiv
2310.12072), whose models run the same few layers in cycles. Without shared layers there is no gain in having the tokens
at different stages, so one pass verifies them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from speculant.core.drafter import Session, SessionRequest
from speculant.core.errors import UsageError
from speculant.core.sublayers import Sublayers
from speculant.drafters.layers.drafter import LayerDrafter
from speculant.drafters.layers.guesses import Guesses
from speculant.drafters.layers.subsets import check_layers, first_layers
from speculant.drafters.models.shapes import Chain, Shape
from speculant.drafters.models.tree_acceptance import LevelAcceptance

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExitSettings:
    """Settings of `early-exit`.

    Attributes:
        layer: number of first decoder layers that draft; none for a third of them, or half with tree=guesses.
        tree: "chain", or "guesses" for several next tokens, each continued (PPD).
        guesses: number of next tokens with tree=guesses.
        groups: number of groups of layers; the first group drafts one token for each other group (SPEED). None to use
            `layer`.
        stop: rule that ends a chain before the budget does: none, fixed, heuristic, confidence, joint or entropy.
        threshold: threshold of "confidence" (default 0.4), "joint" (0.1) or "entropy" (0.3).
        length: tokens of a fixed draft and of the schedule's first draft; depth of the tree with tree=guesses.
    """

    layer: int | None = None
    tree: str = "chain"
    guesses: int = 3
    groups: int | None = None
    stop: str = "confidence"
    threshold: float | None = None
    length: int = 6


class EarlyExitDrafter(LayerDrafter):
    """Drafts with the first layers of the target."""

    def __init__(self, *, layers: int, settings: EarlyExitSettings | None = None) -> None:
        """Create the drafter.

        Args:
            layers: number of decoder layers of the target; 0 if none can be left out.
            settings: None for the defaults.

        Raises:
            UnsupportedError: no layers of the target can be left out.
            UsageError: a setting is out of range.
        """
        s, count = settings or EarlyExitSettings(), check_layers(layers)
        if s.tree not in ("chain", "guesses"):
            raise UsageError(f"tree must be chain or guesses, not {s.tree!r}.")
        if s.groups is not None:
            super().__init__(*_plan_pipeline(s, count))
            return
        number = max(1, count // 2 if s.tree == "guesses" else round(count / 3)) if s.layer is None else s.layer
        chosen, acceptance = first_layers(count, number, name="layer"), LevelAcceptance()
        if s.tree == "guesses":
            super().__init__(chosen, lambda: Guesses(acceptance, top_k=s.guesses, depth=s.length))
        else:
            super().__init__(chosen, lambda: Chain(acceptance, s.stop, s.threshold, s.length))

    def open(self, start: SessionRequest) -> Session:
        if not self._tried:
            logger.warning(
                "early-exit drafts well on models that were trained to exit early, such as LayerSkip's; for others "
                "train an adapter by `speculant train exit`, which the method kangaroo drafts with."
            )
        return super().open(start)


def _plan_pipeline(s: EarlyExitSettings, count: int) -> tuple[Sublayers, Callable[[], Shape]]:
    """Return the first group of layers, and chains with one token for each other group."""
    groups = min(s.groups or 0, count)
    if s.layer is not None or s.tree != "chain":
        raise UsageError("groups says how many layers draft a chain; leave out `layer` and `tree`.")
    if groups < 2:
        raise UsageError(f"groups must be from 2 to the model's {count} layers, not {s.groups}.")
    acceptance, length = LevelAcceptance(), groups - 1
    return (
        first_layers(count, count // groups, name="the first group"),
        lambda: Chain(acceptance, "fixed", length=length),
    )
