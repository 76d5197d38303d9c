"""MTP: the layers with which models are trained to predict tokens beyond the next one.

DeepSeek-AI: "DeepSeek-V3 Technical Report", 2024, arXiv 2412.19437, section 2.2; the same modules in Qwen3-Next and
3.5, GLM-4.5, MiMo, Ernie 4.5, Nemotron 3 and others, which differ in names, orders and norms (layouts.py).

A module reads the embedding of token i + 1 and the state of token i, each normalised; its projection and a decoder
layer of the target's class give the state that the next module reads, after the module's own norm. The first one reads
the target's states after its final norm. If more tokens are drafted than there are modules, the last one continues from
its own output, as intended for Qwen's and GLM's (measured elsewhere: 45 to 71 % accepted at depth 3).

Rows are indexed by the token that they read. Module k has a row for token t, R_k(t), from the embedding of t and the
state R_(k-1) of the token before it, where R_(-1) is the target's own state. For committed tokens every module has rows
(except the first k tokens of the text in module k); for a drafted token, only those modules for which the chain of
states above it is known, i.e. those from its depth on. Beyond the last module, that one reads its own rows. All rows
attend to the rows of their own module. With one module this is EAGLE's scheme, and if its layer is a plain one, it runs
as such (plain.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from speculant.core.engine import LAST_LAYER
from speculant.drafters.heads.feature_state import FeatureState
from speculant.drafters.heads.head import Head, HeadState, TargetParts
from speculant.drafters.heads.layers import join_tensors
from speculant.drafters.heads.mtp.module import ROOT, ModuleRows, MtpModule, NewModuleRows, run_rows
from speculant.drafters.heads.mtp.plain import PlainMtp, view_plain
from speculant.drafters.heads.step import GrownDraft
from speculant.drafters.models.shapes import GrowthPlan


class MtpHead(nn.Module, Head):
    """The MTP modules of a model.

    Attributes:
        mtp: the modules; the first serves the first drafted token, and so on; the last one serves all later tokens.
    """

    taps = (LAST_LAYER,)
    paths = ()

    def __init__(self, modules: Sequence[MtpModule], *, depth: int | None = None, ids: Tensor | None = None) -> None:
        """Combine modules into a head.

        Args:
            modules: at least one.
            depth: maximum depth of a token that they can draft; None for no limit.
            ids: Int64[V'], the target's token for each logit; None if the logits are those of all tokens.
        """
        super().__init__()
        self.mtp = nn.ModuleList(modules)
        self.depth, self.ids = depth, ids
        self._views = list[PlainMtp | None]()  # view of a single module, built on first use; a list, so not a submodule

    def __len__(self) -> int:
        return len(self.mtp)

    def module(self, index: int) -> MtpModule:
        """Return a module."""
        found = self.mtp[index]
        assert isinstance(found, MtpModule)
        return found

    def open(self, first: int, target: TargetParts) -> HeadState:
        plain = self._view(target)
        return MtpState(self, target, first) if plain is None else FeatureState(plain, target, first)

    def with_vocabulary(self, ids: Tensor) -> MtpHead | None:
        modules = [self.module(index) for index in range(len(self))]
        if self.ids is not None or any(module.lm_head is not None for module in modules):
            return None
        return MtpHead(modules, depth=self.depth, ids=ids)

    def extend_all(self, states: Sequence[HeadState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
        if (plain := _plain_of(states)) is not None:
            plain.extend_all(states, hidden, following)
        elif (own := _select_own(states)) is not None:
            extend_texts(own, hidden, following)
        else:
            super().extend_all(states, hidden, following)

    def start_all(self, states: Sequence[HeadState]) -> list[Tensor]:
        if (own := _select_own(states)) is not None:
            return logits_after([(state, 0, [ROOT]) for state in own])
        return super().start_all(states)

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        if (plain := _plain_of(states)) is not None:
            return plain.grow_all(states, tokens, above)
        own = _select_own(states)
        return super().grow_all(states, tokens, above) if own is None else grow_texts(own, tokens, above)

    def grow_whole_all(
        self, states: Sequence[HeadState], plans: Sequence[GrowthPlan], temperatures: Sequence[float]
    ) -> list[GrownDraft | None]:
        plain = _plain_of(states)
        return [None] * len(states) if plain is None else plain.grow_whole_all(states, plans, temperatures)

    def _view(self, target: TargetParts) -> PlainMtp | None:
        """Return the head as one of EAGLE's family; None if it has several modules, or its layer is not plain."""
        if len(self) != 1:
            return None
        view = self._views[0] if self._views else None
        if not self._views or (view is not None and not view.shares(self.module(0))):
            self._views = [view := view_plain(self.module(0), target, self.ids)]
        return view


def _plain_of(states: Sequence[HeadState]) -> PlainMtp | None:
    """Return the view that all texts share; None if they use modules, or several views."""
    heads = {id(head): head for each in states if isinstance(head := getattr(each, "head", None), PlainMtp)}
    alike = len(heads) == 1 and all(isinstance(each, FeatureState) for each in states)
    return next(iter(heads.values())) if alike else None


class MtpState(HeadState):
    """State of one text.

    Attributes:
        modules: its rows in each module.
        target: target of the head.
    """

    def __init__(self, head: MtpHead, target: TargetParts, first: int) -> None:
        """Start a text whose tokens before position `first` have no rows."""
        self.target, last = target, len(head) - 1
        self.modules = [ModuleRows(head.module(k), target, first + k, whole=k < last) for k in range(len(head))]
        self._depths: list[int] = []  # of the draft's nodes, 1 for children of the root

    @property
    def length(self) -> int:
        return self.modules[0].cache.length

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        extend_texts([self], [hidden], [following])

    def start(self) -> Tensor:
        [logits] = logits_after([(self, 0, [ROOT])])
        return logits

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        [logits] = grow_texts([self], [tokens], [above])
        return logits

    def add_nodes(self, above: Sequence[int]) -> range:
        """Add nodes below the given parents, -1 for the root; return their indices."""
        first = len(self._depths)
        self._depths += [1 if parent == ROOT else self._depths[parent] + 1 for parent in above]
        return range(first, len(self._depths))

    def serving(self, node: int) -> int:
        """Return the module that drafts what follows a node."""
        return min(self._depths[node], len(self.modules) - 1)

    def branch(
        self, k: int, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]
    ) -> NewModuleRows | None:
        """Reserve the rows that new nodes have in module k; None if none of them has one."""
        sources = [self._source(k, node, parent) for node, parent in zip(nodes, parents, strict=True)]
        own, states = list[int](), list[Tensor]()
        for source in dict.fromkeys(source for source in sources if source is not None):
            places = [place for place, each in enumerate(sources) if each is source]
            states.append(source.outputs([parents[place] for place in places]))
            own += places
        if not own:
            return None
        ids = torch.tensor([tokens[place] for place in own], device=states[0].device)
        above = [parents[place] for place in own]
        return self.modules[k].branch([nodes[place] for place in own], above, ids, join_tensors(states))

    def _source(self, k: int, node: int, parent: int) -> ModuleRows | None:
        """Return the module whose output at a node's parent is read by module k; None if the node has no row there."""
        depth, last = self._depths[node], len(self.modules) - 1
        if depth > last:
            return self.modules[last] if k == last else None
        before = self.modules[k - 1] if k >= depth else None
        return before if before is not None and before.holds(parent) else None

    def drop(self) -> None:
        self._depths = []
        for module in self.modules:
            module.drop()

    def crop(self, length: int) -> None:
        self._depths = []
        for module in self.modules:
            module.crop(length)


def extend_texts(states: Sequence[MtpState], hidden: Sequence[Tensor], following: Sequence[Tensor]) -> None:
    """Append rows of committed tokens to texts of one head; takes the arguments of `extend` for each text."""
    first, sizes = states[0], [len(own) for own in hidden]
    given = [*torch.split(first.target.norm(join_tensors([own[:, -1] for own in hidden])), sizes)]
    for k in range(len(first.modules)):
        places = [place for place, own in enumerate(given) if len(own)]  # a text may have fewer tokens than modules
        if not places:
            return
        rows = [states[place].modules[k] for place in places]
        goes_on = k + 1 < len(first.modules)
        before = [each.outputs([ROOT]) if goes_on and each.holds(ROOT) else None for each in rows]
        new = [
            each.commit(following[place][len(following[place]) - len(given[place]) :], given[place])
            for place, each in zip(places, rows, strict=True)
        ]
        for place, passed, last in zip(places, run_rows(new), before, strict=True):
            given[place] = passed[:-1] if last is None else torch.cat([last.to(passed.dtype), passed[:-1]])


def grow_texts(
    states: Sequence[MtpState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Append draft rows to texts of one head; takes the arguments of `grow` for each text."""
    nodes = [state.add_nodes(own) for state, own in zip(states, above, strict=True)]
    for k in range(len(states[0].modules)):
        branched = [state.branch(k, *own) for state, *own in zip(states, nodes, tokens, above, strict=True)]
        if new := [each for each in branched if each is not None]:
            run_rows(new)
    serving = [[state.serving(node) for node in own] for state, own in zip(states, nodes, strict=True)]
    wanted, order = list[tuple[MtpState, int, Sequence[int]]](), list[tuple[int, int]]()
    for k in sorted({each for own in serving for each in own}):
        for place, (state, own) in enumerate(zip(states, nodes, strict=True)):
            if chosen := [node for node, each in zip(own, serving[place], strict=True) if each == k]:
                wanted.append((state, k, chosen))
                order += [(place, node) for node in chosen]
    logits = join_tensors(logits_after(wanted))
    if order != sorted(order):  # restore the order: text by text, then by node
        logits = logits[sorted(range(len(order)), key=order.__getitem__)]
    return [*torch.split(logits, [len(own) for own in nodes])]


def logits_after(wanted: Sequence[tuple[MtpState, int, Sequence[int]]]) -> list[Tensor]:
    """Return the logits [n, V] after nodes of several texts (-1: the root); all nodes of an entry share one module.

    Args:
        wanted: text, module and nodes of each entry; entries with the same module are adjacent.
    """
    found = list[Tensor]()
    for k in dict.fromkeys(module for _, module, _ in wanted):
        outputs = [state.modules[k].outputs(nodes) for state, module, nodes in wanted if module == k]
        rows = wanted[0][0].modules[k]
        logits = rows.module.logits(join_tensors(outputs), rows.target)
        found += torch.split(logits, [len(own) for own in outputs])
    return found


def _select_own(states: Sequence[HeadState]) -> list[MtpState] | None:
    """Return texts on modules, which run together; None if some are on views."""
    found = [state for state in states if isinstance(state, MtpState)]
    return found if len(found) == len(states) else None
