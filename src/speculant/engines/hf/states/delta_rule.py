"""The gated delta rule over a tree: Gated DeltaNet (Yang et al., arXiv 2412.06464), Kimi Delta Attention (2510.26692).

S_i = e^{G_i} S_0 + sum over j in A(i) of e^{G_i - G_j} k_j u_j^T, with decays per head, or per key channel in Kimi's.
A row's written value u_i corrects what the state already holds at k_i, so the u of a pass solve one unit triangular
system.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from speculant.engines.hf.states.record import Record

_ROWS_AT_ONCE = 16  # with decays per key channel, which need heads x rows x rows x channels floats


class DeltaRule(Record):
    """Keys, written values and log decays of the gated delta rule; the state is [1, H, dk, dv]."""

    def __init__(self, keys: Tensor, written: Tensor, decays: Tensor) -> None:
        """Take keys [H, T, dk], written values u [H, T, dv], and log decays [H, T, 1], or [H, T, dk] by key channel."""
        self._keys, self._written, self._decays = keys, written, decays

    def __len__(self) -> int:
        return int(self._keys.shape[1])

    def cut(self, rows: int) -> DeltaRule:
        return DeltaRule(self._keys[:, :rows], self._written[:, :rows], self._decays[:, :rows])

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._written.nbytes + self._decays.nbytes

    @classmethod
    def grown(
        cls,
        record: DeltaRule | None,
        state: Tensor,
        ancestors: Tensor,
        *,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        decays: Tensor,
        beta: Tensor,
    ) -> tuple[DeltaRule, Tensor]:
        """Return the record with further rows, and their outputs.

        Args:
            record: record of earlier rows; None without any.
            state: [1, H, dk, dv].
            ancestors: Bool[T, T], of all rows; True where the column is an ancestor of the row, or the row itself.
            queries: [H, n, dk], scaled.
            keys: [H, n, dk].
            values: [H, n, dv].
            decays: [H, n, 1] or [H, n, dk], at most 0.
            beta: [H, n, 1].

        Returns:
            The record, and outputs [H, n, dv].
        """
        old = 0 if record is None else len(record)
        if record is not None:
            known, decays = torch.cat([record._keys, keys], dim=1), torch.cat([record._decays, decays], dim=1)
        else:
            known = keys
        sums = ancestors.to(decays.dtype) @ decays  # G [H, T, 1 or dk]
        start, seen = sums[:, old:].exp(), ancestors[old:]
        among = _multiply_decayed(torch.cat([keys, queries]), known, sums, seen, old)
        among_keys, among_queries = among[: len(keys)], among[len(keys) :]
        # 1. What the rows read at their keys before they write: from the state and from recorded rows.
        read = (keys * start) @ state[0].to(keys.dtype)
        if record is not None:
            read = read + among_keys[:, :, :old] @ record._written
        # 2. (I + T) U = beta (V - read), T being beta times the products with strict ancestors among the new rows.
        system = (beta * among_keys[:, :, old:]).tril(-1)
        new = torch.linalg.solve_triangular(system, beta * (values - read), upper=False, unitriangular=True)
        written = new if record is None else torch.cat([record._written, new], dim=1)
        # 3. The outputs read the state after each row.
        outputs = (queries * start) @ state[0].to(keys.dtype) + among_queries @ written
        return cls(known, written, decays), outputs

    def fold_rows(self, state: Tensor, path: Sequence[int]) -> Tensor:
        rows = list(path)
        sums = self._decays[:, rows].cumsum(dim=1)
        keys = self._keys[:, rows] * (sums[:, -1:] - sums).exp()
        decayed = state[0] * sums[:, -1].exp()[:, :, None]
        return decayed.baddbmm_(keys.transpose(1, 2), self._written[:, rows]).to(state.dtype)[None]


def _multiply_decayed(left: Tensor, keys: Tensor, sums: Tensor, seen: Tensor, old: int) -> Tensor:
    """Return <l_i, e^{G_i - G_j} k_j> where row i sees row j, else 0: [2 H, n, T].

    Args:
        left: [2 H, n, dk], new keys followed by queries of the H heads.
        keys: [H, T, dk], of all rows.
        sums: [H, T, 1 or dk], G.
        seen: Bool[n, T].
        old: T - n.
    """
    if sums.shape[-1] == 1:
        distance = (sums[:, old:] - sums.transpose(1, 2)).masked_fill(~seen, -torch.inf).exp()
        return (left @ keys.repeat(2, 1, 1).transpose(1, 2)) * distance.repeat(2, 1, 1)
    heads, parts = len(keys), []
    for begin in range(0, len(seen), _ROWS_AT_ONCE):
        rows = slice(begin, begin + _ROWS_AT_ONCE)
        distance = sums[:, old:][:, rows, None] - sums[:, None]
        decayed = distance.masked_fill(~seen[rows, :, None], -torch.inf).exp() * keys[:, None]  # [H, m, T, dk]
        both = left[:, rows].reshape(2, heads, -1, left.shape[-1])
        parts.append(torch.einsum("shmd,hmtd->shmt", both, decayed).flatten(0, 1))
    return torch.cat(parts, dim=1)
