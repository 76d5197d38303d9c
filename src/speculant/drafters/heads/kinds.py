"""The table of kinds of heads; methods, formats of checkpoints and training derive from it.

A new kind is a folder, with its head, checkpoints, recipe and `kind.py`, and a line here. Nothing heavy is imported.
"""

from __future__ import annotations

from speculant.drafters.heads.assistant.kind import ASSISTANT
from speculant.drafters.heads.blockwise.kind import BLOCKWISE
from speculant.drafters.heads.dflash.kind import DFLASH
from speculant.drafters.heads.eagle.kind import EAGLE
from speculant.drafters.heads.eagle3.kind import EAGLE3
from speculant.drafters.heads.glide.kind import GLIDE
from speculant.drafters.heads.hydra.kind import HYDRA, HYDRA_PLUS
from speculant.drafters.heads.kind import HeadKind
from speculant.drafters.heads.lookahead.kind import PASS
from speculant.drafters.heads.medusa.kind import MEDUSA
from speculant.drafters.heads.mlp.kind import MLP
from speculant.drafters.heads.mtp.kind import MTP
from speculant.drafters.heads.p_eagle.kind import P_EAGLE
from speculant.drafters.heads.pard.kind import PARD
from speculant.drafters.heads.specdec.kind import SPECDEC

HEAD_KINDS: tuple[HeadKind, ...] = (
    EAGLE,
    EAGLE3,
    MTP,
    ASSISTANT,
    P_EAGLE,
    BLOCKWISE,
    MEDUSA,
    HYDRA,
    HYDRA_PLUS,
    MLP,
    DFLASH,
    PARD,
    GLIDE,
    PASS,
    SPECDEC,
)
