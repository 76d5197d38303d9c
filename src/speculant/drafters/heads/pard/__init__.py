"""Definition of PARD models as a kind of heads: checkpoints and methods. `training.pard` trains them."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, Layout

PARD = HeadKind(
    name="pard",
    layouts=(
        Layout(
            name="PARD",
            method="pard",
            matches="speculant.drafters.heads.pard.checkpoint:matches",
            load="speculant.drafters.heads.pard.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="pard",
            family="independent drafting, parallel model",
            summary="a small model with a mask token drafts a block in one pass",
            drafter="speculant.drafters.heads.drafter:ChainHeadDrafter",
            settings="speculant.drafters.heads.drafter:ChainHeadSettings",
            source="An et al. 2025, arXiv 2504.18583",
            requires="a PARD model of the target's family",
        ),
    ),
    model=True,
    decoder_only="it reads only the text that the target writes, not what its encoder reads",
)
