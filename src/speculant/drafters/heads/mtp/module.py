"""One MTP module, and its rows on one text.

It reads the embedding of a token and the state of the token before, each normalised; a projection and decoder layers of
the target's class follow, then a norm. What it returns is projected to logits, and is the state that the next row
reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.layers import joined
from speculant.drafters.heads.target_layer import LayerRows, TargetLayer

ROOT = -1
_ROOM = 64  # rows that need no larger buffer


class MtpModule(nn.Module):
    """One module, of one or more decoder layers."""

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
        """Build a module; all weights but those of its layers are new.

        Args:
            target: whose class of norms it has.
            layers: with their weights, each a `TargetLayer`.
            hidden_first: whether the projection reads the state before the embedding.
            norm: whether its output is normalised.
            bias: whether the projection has one.
            embeddings, output: whether it has embeddings and an output projection of its own.
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
        """Return what the first layer reads, [..., D], of embeddings and states [..., D]."""
        dtype = self.eh_proj.weight.dtype
        parts = [self.enorm(embeddings.to(dtype)), self.hnorm(hidden.to(dtype))]
        fused: Tensor = self.eh_proj(torch.cat(parts[::-1] if self.hidden_first else parts, dim=-1))
        return fused

    def logits(self, passed: Tensor, target: TargetParts) -> Tensor:
        """Return the logits [..., V] of its output after the norm."""
        found: Tensor = target.project(passed) if self.lm_head is None else self.lm_head(passed)
        return found


class ModuleRows:
    """The rows of one module on one text: those of committed tokens, then those of the draft.

    Attributes:
        cache: their places, and who sees whom.
        module, target: whose rows these are, and what the head uses of its target.
        held: keys and values of its layers.
        rows: by node of the draft, its row counted from the draft's first; the root, -1, is the last committed row.
    """

    def __init__(self, module: MtpModule, target: TargetParts, first: int, *, whole: bool) -> None:
        """Begin without rows.

        Args:
            module: whose rows these are.
            target: of the head.
            first: the position of the first row.
            whole: whether outputs of all committed rows are kept, which the module below may ask for after `crop`;
                else those of the last one.
        """
        self.module, self.target, self._whole = module, target, whole
        self.cache = HeadCache(0, first=first)
        self.rows: dict[int, int] = {}
        self.held = list[LayerRows]()
        for layer in module.layers:
            assert isinstance(layer, TargetLayer)
            self.held.append(layer.open())
        self._passed: Tensor | None = None  # [room, D], outputs: of committed rows as far as they are kept, and drafts

    @property
    def _kept(self) -> int:
        return self.cache.committed if self._whole else min(1, self.cache.committed)

    def holds(self, node: int) -> bool:
        """Return whether a node has a row."""
        return node in self.rows if node != ROOT else self.cache.committed > 0

    def commit(self, ids: Tensor, hidden: Tensor) -> NewModuleRows:
        """Make room for rows of committed tokens Int64[n] that read states [n, D]; `run_rows` fills it."""
        first = self._kept
        positions, seen = self.cache.commit(len(ids), ids.device)
        return NewModuleRows(
            self, ids, hidden, positions, seen, first if self._whole else 0, len(ids) if self._whole else 1
        )

    def branch(self, nodes: Sequence[int], parents: Sequence[int], ids: Tensor, hidden: Tensor) -> NewModuleRows:
        """Make room for rows of nodes below others (-1: the root), of tokens Int64[n] that read states [n, D]."""
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
        """Drop the rows of the draft, and those of all tokens from this position on."""
        self.cache.crop(length)
        self.drop()

    def keep(self, outputs: Tensor, first: int) -> None:
        """Keep outputs from a place on."""
        end, held = first + len(outputs), self._passed
        if held is None or len(held) < end:
            self._passed = outputs.new_empty(2 * end + _ROOM, outputs.shape[1])
            if held is not None:
                self._passed[:first] = held[:first]
        assert self._passed is not None
        self._passed[first:end] = outputs


@dataclass(frozen=True, slots=True, eq=False)
class NewModuleRows:
    """Rows of one module on one text that there is room for and that are yet to be run.

    Attributes:
        owner: whose rows they are.
        ids: Int64[n], their tokens.
        hidden: [n, D], the states that they read.
        positions: Int64[n].
        seen: Bool[n, rows], which rows of the text each may attend to; None for one that sees all.
        first, kept: the place from which on so many outputs, the last ones, are kept.
    """

    owner: ModuleRows
    ids: Tensor
    hidden: Tensor
    positions: Tensor
    seen: Tensor | None
    first: int
    kept: int


def run_rows(new: Sequence[NewModuleRows]) -> list[Tensor]:
    """Run new rows of one module on several texts, and keep their outputs; return the outputs [n, D] of each text."""
    module, target = new[0].owner.module, new[0].owner.target
    sizes, positions = [len(each.ids) for each in new], joined([each.positions for each in new])
    embeddings = module.embed(joined([each.ids for each in new]), target)
    x = module.fuse(embeddings, joined([each.hidden for each in new]))
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
