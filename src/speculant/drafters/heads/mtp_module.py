"""One MTP module, and its rows on one text.

It reads the embedding of a token and the state of the token before, each normalised; a projection and decoder layers of
the target's class follow, then a norm. What it returns is projected to logits, and is the state that the next row
reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from speculant.drafters.heads.cache import HeadCache
from speculant.drafters.heads.head import TargetParts
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
        self._module, self._target, self._whole = module, target, whole
        self.cache = HeadCache(0, first=first)
        self.rows: dict[int, int] = {}
        self._held = list[LayerRows]()
        for layer in module.layers:
            assert isinstance(layer, TargetLayer)
            self._held.append(layer.open())
        self._passed: Tensor | None = None  # [room, D], outputs: of committed rows as far as they are kept, and drafts

    @property
    def _kept(self) -> int:
        return self.cache.committed if self._whole else min(1, self.cache.committed)

    def holds(self, node: int) -> bool:
        """Return whether a node has a row."""
        return node in self.rows if node != ROOT else self.cache.committed > 0

    def commit(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Append rows of committed tokens Int64[n] that read states [n, D]; return their outputs [n, D]."""
        positions, seen = self.cache.commit(len(ids), ids.device)
        passed = self._run(ids, hidden, positions, seen)
        kept = passed if self._whole else passed[-1:]
        self._keep(kept, self._kept - len(kept))
        return passed

    def branch(self, nodes: Sequence[int], parents: Sequence[int], ids: Tensor, hidden: Tensor) -> None:
        """Append rows of nodes below others (-1: the root), of tokens Int64[n] that read states [n, D]."""
        first = self.cache.drafted
        above = [self.rows.get(parent, ROOT) for parent in parents]
        positions, seen = self.cache.branch(above, ids.device)
        self.rows |= {node: first + place for place, node in enumerate(nodes)}
        self._keep(self._run(ids, hidden, positions, seen), self._kept + first)

    def outputs(self, nodes: Sequence[int]) -> Tensor:
        """Return the outputs [n, D] of nodes, -1 for the last committed row."""
        assert self._passed is not None
        places = [self._kept + (ROOT if node == ROOT else self.rows[node]) for node in nodes]
        if len(places) == 1:
            return self._passed[places[0] : places[0] + 1]
        return self._passed[torch.tensor(places, device=self._passed.device)]

    def logits(self, nodes: Sequence[int]) -> Tensor:
        """Return the logits [n, V] after nodes, -1 for the root."""
        return self._module.logits(self.outputs(nodes), self._target)

    def drop(self) -> None:
        """Drop the rows of the draft."""
        self.cache.drop()
        self.rows = {}
        for held in self._held:
            held.keep(self.cache.committed)

    def crop(self, length: int) -> None:
        """Drop the rows of the draft, and those of all tokens from this position on."""
        self.cache.crop(length)
        self.drop()

    def _run(self, ids: Tensor, hidden: Tensor, positions: Tensor, seen: Tensor | None) -> Tensor:
        x = self._module.fuse(self._module.embed(ids, self._target), hidden)[None]
        for layer, held in zip(self._module.layers, self._held, strict=True):
            x = layer(x, positions[None], None if seen is None else seen[None], held)
        passed: Tensor = self._module.norm(x[0])
        return passed

    def _keep(self, outputs: Tensor, first: int) -> None:
        """Keep outputs from a place on."""
        end, held = first + len(outputs), self._passed
        if held is None or len(held) < end:
            self._passed = outputs.new_empty(2 * end + _ROOM, outputs.shape[1])
            if held is not None:
                self._passed[:first] = held[:first]
        assert self._passed is not None
        self._passed[first:end] = outputs
