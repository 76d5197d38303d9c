"""The table of kinds of heads, from which methods, checkpoint formats and training are derived.

A new kind is a folder with its head, checkpoints and recipe, its row in `__init__.py`, and a line here. Nothing heavy
is imported.
"""

from __future__ import annotations

from speculant.drafters.heads.assistant import ASSISTANT
from speculant.drafters.heads.blockwise import BLOCKWISE
from speculant.drafters.heads.dflash import DFLASH
from speculant.drafters.heads.eagle import EAGLE
from speculant.drafters.heads.eagle3 import EAGLE3
from speculant.drafters.heads.exit import EXIT
from speculant.drafters.heads.glide import GLIDE
from speculant.drafters.heads.hydra import HYDRA, HYDRA_PLUS
from speculant.drafters.heads.kind import HeadKind
from speculant.drafters.heads.medusa import MEDUSA
from speculant.drafters.heads.mlp import MLP
from speculant.drafters.heads.mtp import MTP
from speculant.drafters.heads.p_eagle import P_EAGLE
from speculant.drafters.heads.pard import PARD
from speculant.drafters.heads.pass_ import PASS
from speculant.drafters.heads.specdec import SPECDEC

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
    EXIT,
)
