"""Drafting with a trained head: chains and trees, from the target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest
from speculant.core.engine import MAX_NODES, RequestedOutputs
from speculant.core.errors import UsageError
from speculant.core.tree import DraftTree
from speculant.drafters.heads import calibration, whole_drafts
from speculant.drafters.heads.calibration import Calibration
from speculant.drafters.heads.head import Head, TargetParts, head_needs
from speculant.drafters.heads.kept import KeptStates
from speculant.drafters.heads.ranked_vocabulary import reduce_vocabulary
from speculant.drafters.heads.session import HeadSession, grow_whole_together
from speculant.drafters.heads.static_tree import StaticTree
from speculant.drafters.heads.text import HeadText, read_together
from speculant.drafters.heads.united_session import UnitedSession
from speculant.drafters.models.level_session import LevelSession
from speculant.drafters.models.shapes import BestFirst, Chain, GrowthPlan, Shape, check_max
from speculant.drafters.models.together import draft_together
from speculant.drafters.models.tree_acceptance import LevelAcceptance, LevelGains


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSettings:
    """Settings of methods with a head.

    Attributes:
        tree: "dynamic" for the most probable paths by the head's own probabilities, "static" for the ranks of the
            published tree for such heads, "chain" for one token per level.
        depth: maximum levels of a draft.
        top_k: for a dynamic tree, nodes expanded per level, and candidates per expanded node.
        min_probability: for a dynamic tree, minimum joint probability of a node that is expanded.
        max_nodes: maximum nodes per draft; drafts are cut to what the engine has room for.
        vocabulary: file of token ids, most frequent first; only these are drafted. "" for all tokens.
        vocabulary_size: number of tokens from the file that are drafted; 0 for all in the file.
    """

    tree: str = "dynamic"
    depth: int = 7
    top_k: int = 8
    min_probability: float = 0.0
    max_nodes: int = MAX_NODES
    vocabulary: str = ""
    vocabulary_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHeadSettings(HeadSettings):
    """Settings of methods whose heads draft chains by default; see `HeadSettings`."""

    tree: str = "chain"


@dataclass(frozen=True, slots=True, eq=False)
class LoadedHead:
    """A head loaded for its target.

    Attributes:
        head: the head, with its weights on the target's device.
        target: parts of the target that it uses.
        kind: kind of its architecture, as named in `Method.heads`.
        method: method that drafts with this head alone.
        notes: notes about the pair for the user.
    """

    head: Head
    target: TargetParts
    kind: str
    method: str
    notes: tuple[str, ...] = ()

    def with_vocabulary(self, path: str, size: int) -> LoadedHead:
        """Return the head restricted to the tokens of a file; see `reduce_vocabulary`."""
        head, target = reduce_vocabulary(self.head, self.target, path, size, kind=self.kind)
        return self if head is self.head else replace(self, head=head, target=target)


class HeadDrafter(Drafter):
    """Drafter with one head for all requests.

    Attributes:
        head: the loaded head.
        states: states of its texts.
    """

    def __init__(self, head: LoadedHead, *, settings: HeadSettings | None = None, sampled: bool = False) -> None:
        """Set up the head.

        Args:
            head: result of `load_head`.
            settings: None for the defaults.
            sampled: whether chains are drawn from q when the target samples, for rules that compare probabilities;
                otherwise their tokens are the most probable ones. Trees always take the most probable ones.

        Raises:
            FileError, UsageError, UnsupportedError: a setting is out of range, or not supported by the head.
        """
        self._settings, self._sampled = settings or HeadSettings(), sampled
        self.head = head = head.with_vocabulary(self._settings.vocabulary, self._settings.vocabulary_size)
        self._acceptance, self._gains, self._calibration = LevelAcceptance(), LevelGains(), Calibration()
        self.states = KeptStates(head.head, head.target)
        calibration.warm_up()
        whole_drafts.warm_up()
        self._shape()  # validates the settings before the first request
        self._needs = replace(head_needs(self.head.head), max_nodes=check_max(self._settings.max_nodes))

    @property
    def needs(self) -> RequestedOutputs:
        """Target outputs that the head reads: hidden states."""
        return self._needs

    def open(self, start: SessionRequest) -> Session:
        return HeadSession(self.open_text(start), start, self._shape(), self._calibration)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        return propose_together(sessions, budgets)

    def open_text(self, start: SessionRequest) -> HeadText:
        """Return a request's text on the head."""
        return HeadText(self.states, start)

    def _shape(self) -> Shape:
        s = self._settings
        if s.tree == "chain":
            return HeadChain(self._acceptance, s.depth, choosing=not self._sampled)
        if s.tree == "dynamic":
            return BestFirst(
                self._gains, depth=s.depth, top_k=s.top_k, min_probability=s.min_probability, max_nodes=s.max_nodes
            )
        if s.tree != "static":
            raise UsageError(f"tree must be dynamic, static or chain, not {s.tree!r}.")
        if not self.head.head.paths:
            raise UsageError(f"there is no static tree for heads of kind {self.head.kind}; use tree=dynamic or chain.")
        return StaticTree(self.head.head.paths, self._acceptance)


def propose_together(sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
    """Return the drafts of sessions on texts of one head, whose rows run together."""
    if len(sessions) == 1:
        return [sessions[0].propose(budgets[0])]
    drafts = dict[int, DraftTree]()
    for place, (session, budget) in enumerate(zip(sessions, budgets, strict=True)):
        if isinstance(session, UnitedSession) and not session.recall(budget):
            drafts[place] = session.draft_from_memory(budget)
    rest = [place for place in range(len(sessions)) if place not in drafts]
    if rest:
        grown = _propose_grown([sessions[place] for place in rest], [budgets[place] for place in rest])
        drafts |= zip(rest, grown, strict=True)
    return [drafts[place] for place in range(len(sessions))]


def _propose_grown(sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
    """Return drafts that the head grows together; the memories of united sessions have already drafted."""
    united = [each if isinstance(each, UnitedSession) else None for each in sessions]
    growing = [each if own is None else own.own for each, own in zip(sessions, united, strict=True)]
    levels = [each for each in growing if isinstance(each, LevelSession)]
    if len(levels) < len(sessions):
        return [session.propose(budget) for session, budget in zip(sessions, budgets, strict=True)]
    asked = [budget if own is None else own.raise_budget(budget) for own, budget in zip(united, budgets, strict=True)]
    drafts = _grow_together(levels, asked)
    return [
        draft if own is None else own.unite(draft, budget)
        for own, draft, budget in zip(united, drafts, budgets, strict=True)
    ]


def _grow_together(sessions: Sequence[LevelSession], budgets: Sequence[Budget]) -> list[DraftTree]:
    """Return the drafts of sessions: grown whole by a single call where fast code can, otherwise level by level."""
    whole = grow_whole_together(sessions, budgets)
    rest = [place for place, draft in enumerate(whole) if draft is None]
    grown = iter(draft_together([sessions[place] for place in rest], [budgets[place] for place in rest], read_together))
    return [next(grown) if draft is None else draft for draft in whole]


class ChainHeadDrafter(HeadDrafter):
    """A `HeadDrafter` that drafts chains by default."""

    def __init__(self, head: LoadedHead, *, settings: ChainHeadSettings | None = None, sampled: bool = False) -> None:
        super().__init__(head, settings=settings or ChainHeadSettings(), sampled=sampled)


class HeadChain(Chain):
    """One token per level, drawn or the most probable one."""

    def __init__(self, acceptance: LevelAcceptance, depth: int, *, choosing: bool) -> None:
        super().__init__(acceptance)
        if depth < 1:
            raise UsageError(f"depth must be at least 1, not {depth}.")
        self.passes, self.choosing = depth, choosing

    def plan(self, budget: Budget, levels: int, *, trees: bool) -> GrowthPlan | None:
        return GrowthPlan(levels=levels, nodes=levels, ratios=[1.0] * levels) if self.choosing else None
