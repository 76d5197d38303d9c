"""Drafting with DFlash and DSpark: trees, and chains that a head's predicted acceptance may end."""

from __future__ import annotations

from dataclasses import dataclass

from speculant.core.drafter import Session, SessionRequest
from speculant.core.errors import UsageError
from speculant.drafters.heads.dflash.head import DFlashState
from speculant.drafters.heads.drafter import HeadChain, HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.heads.session import HeadTextSession
from speculant.drafters.heads.text import HeadText
from speculant.drafters.models.shapes import BestFirst, Candidate, Level, Shape
from speculant.drafters.models.tree_acceptance import LevelAcceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashSettings(HeadSettings):
    """Settings of `dflash`; see `HeadSettings`.

    Attributes:
        depth: maximum tokens per draft; also limited by the head's block.
        confidence: for heads that predict acceptance, a chain ends when the predicted probability that all of it is
            accepted falls below this; 0 for never.
    """

    tree: str = "chain"
    depth: int = 16
    confidence: float = 0.0


class DFlashDrafter(HeadDrafter):
    """Drafter of chains from a block, drawn or of the most probable tokens."""

    def __init__(self, head: LoadedHead, *, settings: DFlashSettings | None = None, sampled: bool = False) -> None:
        """Set up the head; see `HeadDrafter`."""
        self._chosen = settings or DFlashSettings()
        if not 0 <= self._chosen.confidence < 1:
            raise UsageError(f"confidence must be from 0 to below 1, not {self._chosen.confidence}.")
        super().__init__(head, settings=self._chosen, sampled=sampled)

    def open(self, start: SessionRequest) -> Session:
        chosen, text = self._chosen, self.open_text(start)
        shape: Shape = self._shape()
        if chosen.confidence and chosen.tree == "chain":
            shape = ConfidentChain(self._acceptance, chosen.depth, text, chosen.confidence, choosing=not self._sampled)
        return HeadTextSession(text, start, shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class JetSpecSettings(DFlashSettings):
    """Settings of `jetspec`; see `DFlashSettings`.

    Attributes:
        top_k: candidates below each node of a tree.
        max_nodes: maximum nodes per draft.
    """

    tree: str = "dynamic"
    top_k: int = 7
    max_nodes: int = 256


class JetSpecDrafter(DFlashDrafter):
    """Drafter of trees of the block's most probable paths: JetSpec (Hu et al. 2026, arXiv 2606.18394).

    A level costs no pass of the layers, whether or not the logits of a slot depend only on its depth. So all nodes that
    can be in the draft are expanded: it is the best tree of its size with `top_k` siblings.
    """

    def __init__(self, head: LoadedHead, *, settings: JetSpecSettings | None = None, sampled: bool = False) -> None:
        """Set up the head; see `HeadDrafter`."""
        super().__init__(head, settings=settings or JetSpecSettings(), sampled=sampled)

    def _shape(self) -> Shape:
        s = self._chosen
        if s.tree != "dynamic":
            return super()._shape()
        maximum = s.max_nodes
        return BestFirst(
            self._gains,
            depth=s.depth,
            top_k=s.top_k,
            min_probability=s.min_probability,
            max_nodes=maximum,
            expanded=maximum,
        )


class ConfidentChain(HeadChain):
    """Ends where the head expects the chain to be rejected.

    The prediction for a token is made before it is drawn, from the tokens before it, so that ending there keeps
    sampling exact.
    """

    def __init__(
        self, acceptance: LevelAcceptance, depth: int, text: HeadText, min_probability: float, *, choosing: bool
    ) -> None:
        super().__init__(acceptance, depth, choosing=choosing)
        self._text, self._min_probability, self._survival = text, min_probability, 1.0

    def expand(self, level: Level) -> list[Candidate]:
        state = self._text.state
        found = state.confidence if isinstance(state, DFlashState) else None
        if level.depth == 1:
            self._survival = 1.0
        self._survival *= 1.0 if found is None else float(found[0])
        if level.depth > 1 and self._survival < self._min_probability:
            return []
        return super().expand(level)
