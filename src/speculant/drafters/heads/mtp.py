"""MTP: the layers that models are trained with beside their own, to predict the token after the next.

DeepSeek-AI: "DeepSeek-V3 Technical Report", 2024, arXiv 2412.19437, section 2.2; the same modules in Qwen3-Next and
3.5, GLM-4.5, MiMo, Ernie 4.5, Nemotron 3 and others, which differ in names, orders and norms
(`checkpoints.mtp_layouts`).

A module reads the embedding of token i + 1 and the state of token i, each normalised; its projection and a decoder
layer of the target's class give the state that the next module reads, after the module's own norm. The first one reads
the target's states after its final norm. Where more tokens are drafted than there are modules, the last goes on from
its own output, as Qwen's and GLM's are meant to (measured elsewhere: 45 to 71 % accepted at depth 3).

Rows are counted by the token that they read. Module k has a row of token t, R_k(t), from the embedding of t and the
state R_(k-1) of the token before it, where R_(-1) is the target's own state: of committed tokens every module has rows
(the first k tokens after the beginning have none in module k), of a drafted token only those modules for which the
chain of states above it is known, which are those from its depth on. Beyond the last module, that one reads its own
rows. All attend to the rows of their own module. With one module this is EAGLE's scheme, and where its layer is a
plain one it runs as such (`plain_mtp`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from speculant.drafters.heads.feature_state import FeatureState, extend_states, grow_states
from speculant.drafters.heads.head import Head, HeadState, TargetParts
from speculant.drafters.heads.mtp_module import ROOT, ModuleRows, MtpModule
from speculant.drafters.heads.plain_mtp import PlainMtp, view_plain

LAST = -1


class MtpHead(nn.Module, Head):
    """The modules of a model.

    Attributes:
        mtp: the modules; the first serves the first drafted token, and so on; the last one all that follow.
    """

    taps = (LAST,)
    paths = ()

    def __init__(self, modules: Sequence[MtpModule], *, depth: int | None = None, ids: Tensor | None = None) -> None:
        """Take the modules.

        Args:
            modules: one or more.
            depth: the deepest token that they can draft; None for any.
            ids: Int64[V'], the target's token of each logit; None if the logits are those of all tokens.
        """
        super().__init__()
        self.mtp = nn.ModuleList(modules)
        self.depth, self.ids = depth, ids
        self._views = list[PlainMtp | None]()  # of the one module, once a text has asked; in a list, to be no submodule

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
        if (found := _features(states)) is None:
            super().extend_all(states, hidden, following)
        else:
            extend_states(found, hidden, following)

    def grow_all(
        self, states: Sequence[HeadState], tokens: Sequence[Sequence[int]], above: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        found = _features(states)
        return super().grow_all(states, tokens, above) if found is None else grow_states(found, tokens, above)

    def _view(self, target: TargetParts) -> PlainMtp | None:
        """Return the head as one of EAGLE's family; None if it has several modules, or no plain layer."""
        if len(self) != 1:
            return None
        view = self._views[0] if self._views else None
        if not self._views or (view is not None and not view.shares(self.module(0))):
            self._views = [view := view_plain(self.module(0), target, self.ids)]
        return view


def _features(states: Sequence[HeadState]) -> list[FeatureState] | None:
    """Return states that run together; None where they are of modules that run one by one."""
    found = [each for each in states if isinstance(each, FeatureState)]
    return found if len(found) == len(states) and len({id(each.head) for each in found}) == 1 else None


class MtpState(HeadState):
    """See `HeadState`."""

    def __init__(self, head: MtpHead, target: TargetParts, first: int) -> None:
        """Begin a text whose tokens before the position `first` have no rows."""
        self._target, last = target, len(head) - 1
        self._modules = [ModuleRows(head.module(k), target, first + k, whole=k < last) for k in range(len(head))]
        self._depths: list[int] = []  # of the draft's nodes, 1 for those below the root

    @property
    def length(self) -> int:
        return self._modules[0].cache.length

    def extend(self, hidden: Tensor, following: Tensor) -> None:
        given = self._target.norm(hidden[:, -1])
        for module, below in zip(self._modules, [*self._modules[1:], None], strict=True):
            if not len(given):
                break  # the text is shorter than there are modules
            before = module.outputs([ROOT]) if below is not None and module.holds(ROOT) else given[:0]
            passed = module.commit(following[len(following) - len(given) :], given)
            given = torch.cat([before.to(passed.dtype), passed[:-1]])

    def start(self) -> Tensor:
        return self._modules[0].logits([ROOT])

    def grow(self, tokens: Sequence[int], above: Sequence[int]) -> Tensor:
        first, last = len(self._depths), len(self._modules) - 1
        self._depths += [1 if parent == ROOT else self._depths[parent] + 1 for parent in above]
        nodes, parents = range(first, len(self._depths)), dict(enumerate(above, first))
        for k in range(len(self._modules)):
            sources = {node: source for node in nodes if (source := self._source(k, node, parents[node])) is not None}
            for source in dict.fromkeys(sources.values()):
                own = [node for node in sources if sources[node] is source]
                hidden = source.outputs([parents[node] for node in own])
                ids = torch.tensor([tokens[node - first] for node in own], device=hidden.device)
                self._modules[k].branch(own, [parents[node] for node in own], ids, hidden)
        serving = [min(self._depths[node], last) for node in nodes]
        if len(set(serving)) == 1:
            return self._modules[serving[0]].logits(nodes)
        return torch.cat([self._modules[k].logits([node]) for k, node in zip(serving, nodes, strict=True)])

    def _source(self, k: int, node: int, parent: int) -> ModuleRows | None:
        """Return the module whose output at a node's parent module k reads; None where the node has no row there."""
        depth, last = self._depths[node], len(self._modules) - 1
        if depth > last:
            return self._modules[last] if k == last else None
        before = self._modules[k - 1] if k >= depth else None
        return before if before is not None and before.holds(parent) else None

    def drop(self) -> None:
        self._depths = []
        for module in self._modules:
            module.drop()

    def crop(self, length: int) -> None:
        self._depths = []
        for module in self._modules:
            module.crop(length)
