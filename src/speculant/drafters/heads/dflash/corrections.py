"""Corrections that condition a slot's logits on the tokens before it: cheap steps after a parallel pass of the layers.

Markov heads (DSpark: deepseek-ai/DeepSpec) know the preceding token; `rnn` ones and Domino (arXiv 2605.29707) carry a
state from the root on; DFlash 2's selector (z-lab/dflash, inco.ai/blog/dflash2) scores the best tokens of a slot
against the preceding token. With any of them, q of a path is a product, q(x_1 .. x_K) = prod q_k(x_k | x_<k).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from speculant.drafters.heads.dflash.shape import Domino, Selector


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CorrectedRows:
    """Rows whose logits are to be corrected.

    Attributes:
        logits: [n, V'], logits of their slots.
        outputs: [n, D], outputs of their slots.
        tokens: Int64[n], the target's tokens before them.
        depths: Int64[n], 0 for the token after the root.
        carried: [n, S], states passed on by the parent rows; zeros above the root.
        every: whether tokens that are never drafted have logits too, for training.
    """

    logits: Tensor
    outputs: Tensor
    tokens: Tensor
    depths: Tensor
    carried: Tensor
    every: bool = False


class Correction(nn.Module):
    """Returns the corrected logits [n, V'] of rows, and the states they pass to their children.

    Attributes:
        carried: S, size of the state that a row passes on.
    """

    carried = 0

    def forward(self, rows: CorrectedRows, embed: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Correct the logits of rows.

        Args:
            rows: rows of one or several levels.
            embed: returns the embeddings [..., D] of tokens Int64[...], as the block reads them.
        """
        raise NotImplementedError


class MarkovHead(Correction):
    """A low-rank bias on a token's logits given the token before: W2 u with u = W1[x_{k-1}], h the slot's output.

    `gated` multiplies u by sigmoid(G [h; u]); `rnn` has [g; c; o] = J [s; u; h], passes on the state
    sigmoid(g) s + (1 - sigmoid(g)) tanh(c), and adds W2 tanh(o).
    """

    def __init__(self, vocabulary: int, rank: int, outputs: int, *, hidden: int = 0, kind: str = "vanilla") -> None:
        """Build the head.

        Args:
            vocabulary: V, number of preceding tokens.
            rank: size of u.
            outputs: V'.
            hidden: D.
            kind: one of `shape.MARKOV_KINDS`.
        """
        super().__init__()
        self.kind = kind
        self.markov_w1 = nn.Embedding(vocabulary, rank)
        self.markov_w2 = nn.Linear(rank, outputs, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        if kind == "rnn":
            self.joint_proj, self.carried = nn.Linear(2 * rank + hidden, 3 * rank), rank

    def forward(self, rows: CorrectedRows, embed: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        before, carried = self.markov_w1(rows.tokens), rows.carried
        if self.kind == "gated":
            before = before * self.gate_proj(torch.cat([rows.outputs, before], dim=-1)).sigmoid()
        if self.kind == "rnn":
            joint: Tensor = self.joint_proj(torch.cat([carried, before, rows.outputs], dim=-1))
            gate, candidate, output = joint.chunk(3, dim=-1)
            carried = gate.sigmoid() * carried + (1 - gate.sigmoid()) * candidate.tanh()
            before = output.tanh()
        return rows.logits + self.markov_w2(before), carried


class DominoHead(Correction):
    """Adds W2 silu(W1 [h; s]), with s the state of a gated recurrent unit over token embeddings from the root on.

    Named as in checkpoints, where the unit is PyTorch's `GRU` with one layer and no biases.
    """

    def __init__(self, hidden: int, outputs: int, shape: Domino) -> None:
        """Build the head for slot outputs of size D and logits of V' tokens."""
        super().__init__()
        self.carried, self._plain = shape.state, shape.plain
        self.prefix_gru = nn.ParameterDict(
            {
                "weight_ih_l0": nn.Parameter(torch.zeros(3 * shape.state, hidden)),
                "weight_hh_l0": nn.Parameter(torch.zeros(3 * shape.state, shape.state)),
            }
        )
        self.embed_proj = nn.Sequential(
            nn.Linear(hidden + shape.state, shape.inner, bias=False),
            nn.SiLU(),
            nn.Linear(shape.inner, outputs, bias=False),
        )

    def forward(self, rows: CorrectedRows, embed: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        weights, held = self.prefix_gru, rows.carried
        given = nn.functional.linear(embed(rows.tokens).to(held.dtype), weights["weight_ih_l0"]).chunk(3, dim=-1)
        kept = nn.functional.linear(held, weights["weight_hh_l0"]).chunk(3, dim=-1)
        reset, update = (given[0] + kept[0]).sigmoid(), (given[1] + kept[1]).sigmoid()
        carried = (1 - update) * (given[2] + reset * kept[2]).tanh() + update * held
        corrected = rows.logits + self.embed_proj(torch.cat([rows.outputs, carried], dim=-1))
        return torch.where((rows.depths >= self._plain)[:, None], corrected, rows.logits), carried


class CandidateSelector(Correction):
    """Scores the best tokens b of a slot, u(b) + <A[a] * P h, B[b]>, and drops all others.

    u are the logits, a is the preceding token, h the slot's output.
    """

    def __init__(self, vocabulary: int, hidden: int, shape: Selector) -> None:
        """Build the selector for V tokens and slot outputs of size D."""
        super().__init__()
        self._candidates = min(shape.candidates, vocabulary)
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocabulary, shape.rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocabulary, shape.rank))
        self.hidden_projection = nn.Linear(hidden, shape.rank, bias=False)

    def forward(self, rows: CorrectedRows, embed: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        context = self.predecessor_codebook[rows.tokens] * self.hidden_projection(rows.outputs)
        if rows.every:
            return rows.logits + context @ self.successor_codebook.T, rows.carried
        best = rows.logits.topk(self._candidates, dim=-1)
        scores = best.values + (context[:, None] * self.successor_codebook[best.indices]).sum(-1)
        none = torch.full_like(rows.logits, -torch.inf)
        return none.scatter(-1, best.indices, scores.to(none.dtype)), rows.carried


class ConfidenceHead(nn.Module):
    """Predicts the logit of a token's acceptance from its slot's output and the Markov row of the preceding token."""

    def __init__(self, given: int) -> None:
        super().__init__()
        self.proj = nn.Linear(given, 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.proj(x)[..., 0]
        return output
