"""One MTP module, and its rows on one text.

It reads the embedding of a token and the state of the token before it, each normalised; a projection and decoder layers
of the target's class follow, then a norm. The output is projected to logits, and is the state that the next row reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import join_tensors
from speculant.drafters.heads.target_layer import LayerRows, TargetLayer

ROOT = -1
_ROOM = 64  # spare rows allocated when the buffer grows


class MtpModule(nn.Module):
    """One module with one or more decoder layers."""

    def __init__(
        self,
        target: TargetParts,
        layers: Sequence[nn.Module],
        *,
        hidden_first: bool = False,
        norm: bool = True,
        bias: bool = False,
        embeddings: bool = False,
        output: bool = False,
    ) -> None:
        """Build a module; all weights except those of its layers are new.

        Args:
            target: target whose class of norms it uses.
            layers: layers with their weights, each a `TargetLayer`.
            hidden_first: whether the projection reads the state before the embedding.
            norm: whether its output is normalised.
            bias: whether the projection has a bias.
            embeddings, output: whether it has its own embeddings and output projection.
        """
        super().__init__()
        hidden = target.hidden_size
        self.enorm, self.hnorm = target.new_norm(), target.new_norm()
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=bias)
        self.layers = nn.ModuleList(layers)
        self.norm = target.new_norm() if norm else nn.Identity()
        self.embed_tokens = nn.Embedding(target.vocabulary, hidden) if embeddings else None
        self.lm_head = nn.Linear(hidden, target.vocabulary, bias=False) if output else None
        self.hidden_first = hidden_first

    def embed(self, ids: Tensor, target: TargetParts) -> Tensor:
        """Return the embeddings [..., D] of tokens Int64[...]."""
        found: Tensor = target.embed(ids) if self.embed_tokens is None else self.embed_tokens(ids)
        return found

    def fuse(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """Return the input of the first layer, [..., D], for embeddings and states [..., D]."""
        dtype = self.eh_proj.weight.dtype
        parts = [self.enorm(embeddings.to(dtype)), self.hnorm(hidden.to(dtype))]
        fused: Tensor = self.eh_proj(torch.cat(parts[::-1] if self.hidden_first else parts, dim=-1))
        return fused

    def logits(self, passed: Tensor, target: TargetParts) -> Tensor:
        """Return the logits [..., V] for its output after the norm."""
        found: Tensor = target.project(passed) if self.lm_head is None else self.lm_head(passed)
        return found


class ModuleRows:
    """The rows of one module on one text: rows of committed tokens, then rows of the draft.

    Attributes:
        cache: positions and attention masks of the rows.
        module, target: the module, and the parts of the target that the head uses.
        held: keys and values of its layers.
        rows: for each node of the draft, its row counted from the draft's first; the root, -1, is the last committed
            row.
    """

    def __init__(self, module: MtpModule, target: TargetParts, first: int, *, whole: bool) -> None:
        """Start without rows.

        Args:
            module: module that the rows belong to.
            target: target of the head.
            first: position of the first row.
            whole: whether to keep the outputs of all committed rows, which the next module may need after `crop`;
                otherwise only the last one's.
        """
        self.module, self.target, self._whole = module, target, whole
        self.cache = HeadCache(0, first=first)
        self.rows: dict[int, int] = {}
        self.held = list[LayerRows]()
        for layer in module.layers:
            assert isinstance(layer, TargetLayer)
            self.held.append(layer.open())
        self._passed: Tensor | None = None  # [room, D], outputs: first of kept committed rows, then of the draft

    @property
    def _kept(self) -> int:
        return self.cache.committed if self._whole else min(1, self.cache.committed)

    def holds(self, node: int) -> bool:
        """Return whether a node has a row."""
        return node in self.rows if node != ROOT else self.cache.committed > 0

    def commit(self, ids: Tensor, hidden: Tensor) -> NewModuleRows:
        """Reserve rows for committed tokens Int64[n] that read states [n, D]; `run_rows` fills them."""
        first = self._kept
        positions, seen = self.cache.commit(len(ids), ids.device)
        return NewModuleRows(
            self, ids, hidden, positions, seen, first if self._whole else 0, len(ids) if self._whole else 1
        )

    def branch(self, nodes: Sequence[int], parents: Sequence[int], ids: Tensor, hidden: Tensor) -> NewModuleRows:
        """Reserve rows for nodes below parents (-1: the root), with tokens Int64[n] that read states [n, D]."""
        first = self.cache.drafted
        above = [self.rows.get(parent, ROOT) for parent in parents]
        positions, seen = self.cache.branch(above, ids.device)
        self.rows |= {node: first + place for place, node in enumerate(nodes)}
        return NewModuleRows(self, ids, hidden, positions, seen, self._kept + first, len(ids))

    def outputs(self, nodes: Sequence[int]) -> Tensor:
        """Return the outputs [n, D] of nodes, -1 for the last committed row."""
        assert self._passed is not None
        places = [self._kept + (ROOT if node == ROOT else self.rows[node]) for node in nodes]
        if len(places) == 1:
            return self._passed[places[0] : places[0] + 1]
        return self._passed[torch.tensor(places, device=self._passed.device)]

    def drop(self) -> None:
        """Drop the rows of the draft."""
        self.cache.drop()
        self.rows = {}
        for held in self.held:
            held.keep(self.cache.committed)

    def crop(self, length: int) -> None:
        """Drop the rows of the draft, and those of all tokens from position `length` on."""
        self.cache.crop(length)
        self.drop()

    def keep(self, outputs: Tensor, first: int) -> None:
        """Store outputs, starting at index `first`."""
        end, held = first + len(outputs), self._passed
        if held is None or len(held) < end:
            self._passed = outputs.new_empty(2 * end + _ROOM, outputs.shape[1])
            if held is not None:
                self._passed[:first] = held[:first]
        assert self._passed is not None
        self._passed[first:end] = outputs


@dataclass(frozen=True, slots=True, eq=False)
class NewModuleRows:
    """Rows of one module on one text that are reserved but not yet run.

    Attributes:
        owner: rows that they belong to.
        ids: Int64[n], their tokens.
        hidden: [n, D], states that they read.
        positions: Int64[n].
        seen: Bool[n, rows], rows of the text each may attend to; None for one row that sees all.
        first, kept: the last `kept` outputs are stored, starting at index `first`.
    """

    owner: ModuleRows
    ids: Tensor
    hidden: Tensor
    positions: Tensor
    seen: Tensor | None
    first: int
    kept: int


def run_rows(new: Sequence[NewModuleRows]) -> list[Tensor]:
    """Run new rows of one module on several texts and store their outputs; return the outputs [n, D] of each text."""
    module, target = new[0].owner.module, new[0].owner.target
    sizes, positions = [len(each.ids) for each in new], join_tensors([each.positions for each in new])
    embeddings = module.embed(join_tensors([each.ids for each in new]), target)
    x = module.fuse(embeddings, join_tensors([each.hidden for each in new]))
    for index, layer in enumerate(module.layers):
        assert isinstance(layer, TargetLayer)
        held, seen = [each.owner.held[index] for each in new], [each.seen for each in new]
        if len(new) > 1:
            x = layer.run_together(x, positions, seen, held)
        else:
            x = layer(x[None], positions[None], None if seen[0] is None else seen[0][None], held[0])[0]
    passed = [*torch.split(module.norm(x), sizes)]
    for each, own in zip(new, passed, strict=True):
        each.owner.keep(own[len(own) - each.kept :], each.first)
    return passed
