"""Forest: the drafts of B sequences as padded tensors, the input of acceptance rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculant.core.errors import UnsupportedError
from speculant.core.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """B drafts of at most N nodes. Row 0 of a draft is the root, row i + 1 is node i.

    Attributes:
        tokens: Int64[B, N]; 0 as padding.
        parents: Int64[B, N], the row of each node's parent.
        exists: Bool[B, N], False at padding.
        sampled: Bool[B, N], whether a node was drawn from q rather than chosen.
        children: Int64[B, N + 1, W], the children of each row in draft order; -1 as padding.
        q: [B, N + 1, V], the distribution that the children of each row were drawn from; undefined for rows without
            such children.
        distinct: Bool[B], whether siblings were drawn without replacement.
        q_rows: Int64[B, N], the row of q that each node was drawn from, if that is not always the parent's; q then has
            as many rows as the drafts' proposals. None if each node was drawn from its parent's row.
        below: the children without padding, on the host.
    """

    tokens: Tensor
    parents: Tensor
    exists: Tensor
    sampled: Tensor
    children: Tensor
    q: Tensor
    distinct: Tensor
    q_rows: Tensor | None
    below: list[list[list[int]]]

    @classmethod
    def of(cls, drafts: Sequence[DraftTree], p: Tensor) -> Forest:
        """Build the forest of some drafts, with q in the dtype and on the device of p [..., V]."""
        size, below = max(map(len, drafts)), [_children(draft) for draft in drafts]
        width = max((len(nodes) for each in below for nodes in each), default=0)
        tokens, parents, exists, sampled = list[list[int]](), list[list[int]](), list[list[bool]](), list[list[bool]]()
        children = list[list[list[int]]]()
        several = [draft.proposal.q_rows if draft.proposal is not None else None for draft in drafts]
        most = max([size + 1, *(int(own.max(initial=0)) + 1 for own in several if own is not None)])
        q, q_rows = p.new_zeros(len(drafts), most, p.shape[-1]), list[list[int]]()
        for i, (draft, nodes) in enumerate(zip(drafts, below, strict=True)):
            spare = size - len(draft)
            drawn = [False] * len(draft)
            if draft.proposal is not None:
                chosen = draft.proposal.chosen
                drawn = [True] * len(draft) if chosen is None else (~chosen).tolist()
                rows = torch.as_tensor(draft.proposal.q)[:most]
                q[i, : len(rows)] = rows.to(q)
            own = several[i]
            q_rows.append([*((draft.parents + 1) if own is None else own).tolist(), *[0] * spare])
            tokens.append([*draft.tokens.tolist(), *[0] * spare])
            parents.append([*(parent + 1 for parent in draft.parents.tolist()), *[0] * spare])
            exists.append([True] * len(draft) + [False] * spare)
            sampled.append(drawn + [False] * spare)
            padded = [[*each, *[-1] * (width - len(each))] for each in nodes]
            children.append(padded + [[-1] * width] * spare)
        distinct = [draft.proposal is not None and draft.proposal.drawn == "distinct" for draft in drafts]
        device = p.device
        return cls(
            torch.tensor(tokens, dtype=torch.int64, device=device).reshape(len(drafts), size),
            torch.tensor(parents, dtype=torch.int64, device=device).reshape(len(drafts), size),
            torch.tensor(exists, dtype=torch.bool, device=device).reshape(len(drafts), size),
            torch.tensor(sampled, dtype=torch.bool, device=device).reshape(len(drafts), size),
            torch.tensor(children, dtype=torch.int64, device=device).reshape(len(drafts), size + 1, width),
            q,
            torch.tensor(distinct, device=device),
            None
            if all(own is None for own in several)
            else torch.tensor(q_rows, dtype=torch.int64, device=device).reshape(len(drafts), size),
            below,
        )

    def find_proposals(self, node: Tensor, q: Tensor) -> Tensor:
        """Return the distributions [B, V] that one node of each draft was drawn from: q, or one-hot if it was chosen.

        Args:
            node: Int64[B]; any number for drafts without that node.
            q: [B, V], the distribution of the node's siblings, if they share one; ignored if `q_rows` are given.
        """
        at = node.clamp(min=0)[:, None]
        if self.q_rows is not None:
            q = self.q[torch.arange(len(node), device=q.device), self.q_rows.gather(1, at)[:, 0]]
        one_hot = torch.zeros_like(q).scatter_(1, self.tokens.gather(1, at), 1.0)
        return torch.where(self.sampled.gather(1, at), q, one_hot)


def _children(draft: DraftTree) -> list[list[int]]:
    """Return the children of the root and of each node, in draft order."""
    below: list[list[int]] = [[] for _ in range(len(draft) + 1)]
    for node, parent in enumerate(draft.parents.tolist()):
        below[0 if parent == ROOT else parent + 1].append(node)
    return below


def refuse_several(draft: DraftTree, rule: str) -> None:
    """Check that siblings were drawn from one distribution, for rules that support only one.

    Raises:
        UnsupportedError: siblings come from several draft models.
    """
    if draft.proposal is not None and draft.proposal.q_rows is not None:
        raise UnsupportedError(
            f"{rule} takes candidates from one draft model, but these come from several. Use the verifier "
            "'speculative-sampling'."
        )


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return the residual max(0, p - q) [B, V], normalised, from which a rejected token is replaced.

    A token is rejected only if p is below q there, so elsewhere p is above q; but rounding may leave nothing, and then
    p itself is the best answer that the precision allows.
    """
    left = (p - q).clamp(min=0)
    mass = left.sum(-1, keepdim=True)
    return torch.where(mass > 0, left / mass.clamp(min=torch.finfo(p.dtype).tiny), p)


def settle(p: Tensor, tokens: Tensor, q: Tensor, uniforms: Tensor) -> Tensor:
    """Return the conditional distribution [B, V] of a token from p, given a token per row [B] drawn from q [B, V].

    One-hot if that token passes the test of speculative sampling, else the residual. Averaged over q and the uniform
    numbers [B] it equals p, which need not be normalised.
    """
    p, at = p / p.sum(-1, keepdim=True), tokens[:, None]
    accepted = uniforms[:, None] * q.gather(1, at) < p.gather(1, at)
    return torch.where(accepted, torch.zeros_like(p).scatter_(1, at, 1.0), residual(p, q))


def without(q: Tensor, tokens: Tensor) -> Tensor:
    """Return q [B, V] with one token per row [B] removed, normalised; q itself if nothing else is left."""
    left = q.scatter(1, tokens[:, None], 0.0)
    mass = left.sum(-1, keepdim=True)
    return torch.where(mass > 0, left / mass.clamp(min=torch.finfo(q.dtype).tiny), q)


def draw(p: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a token from each distribution [B, V], which need not be normalised, with a uniform number each [B]."""
    reached = p.double().cumsum(-1)
    tokens = torch.searchsorted(reached, (uniforms.double() * reached[:, -1])[:, None], right=True)[:, 0]
    last = p.shape[-1] - 1 - (p > 0).flip(-1).int().argmax(-1)  # rounding must not yield a token of probability 0
    return torch.minimum(tokens, last)
