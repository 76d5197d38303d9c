"""Lightning attention over a tree, as in MiniMax-01 (MiniMax, arXiv 2501.08313, section 2.2.1).

S_i = r S_p(i) + k_i v_i^T with one decay r per head, and row i reads q_i S_i: state-space duality with steps of 1,
transposed. The class writes the recurrence as a loop over rows instead of calling a function:

    for i in range(rows):
        S = ratio * S + torch.matmul(k_i^T, v_i)
        o_i = torch.matmul(q_i, S)

So it runs with substitutes for `range`, which yields all rows at once, for `torch.matmul`, which leaves products of
keys and values uncomputed, and for the state, which returns what the rows' paths give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from speculant.engines.hf.states.adapter import Adapter, cache_class, with_functions
from speculant.engines.hf.states.branching import Branching
from speculant.engines.hf.states.recorder import StateRecorder
from speculant.engines.hf.states.state_space import StateSpace

NAMES = {"get_linear_cache", "set_linear_cache", "range"}  # used by the forward of such a mixer


class LightningCache(DynamicCache):  # type: ignore[misc]
    """The cache for classes that keep these states outside a cache's layers: here they are in the layers."""

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        state: Tensor | None = self.layers[layer_idx].recurrent_states[0]
        return state

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        self.layers[layer_idx].update_recurrent_state(linear_cache)


@dataclass(frozen=True, slots=True)
class Lightning(Adapter):
    """For lightning attention."""

    @property
    def stored(self) -> type[DynamicCache]:
        stored: type[DynamicCache] = cache_class(LightningCache, self.kind)
        return stored

    def record_mixer(self, mixer: Any, layer: int, recorder: StateRecorder) -> nn.Module:
        return with_functions(mixer, {"range": all_at_once, "torch": _Torch(recorder)})


class LightningRows(StateSpace):
    """Values, keys and log decays of rows; the state is [1, H, dk, dv]."""

    def fold_rows(self, state: Tensor, path: Sequence[int]) -> Tensor:
        return super().fold_rows(state.mT, path).mT.contiguous()


class _AllRows(int):
    """An index i for which i : i + 1 selects all rows."""

    rows: int

    def __add__(self, other: int) -> int:
        return self.rows


def all_at_once(rows: int) -> Iterator[int]:
    """Replace `range` where single rows are iterated."""
    index = _AllRows(0)
    index.rows = rows
    yield index


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """The product of keys [1, H, dk, n] and values [1, H, n, dv], left uncomputed."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LightningState:
    """Represents the state of each row: decayed by a ratio [H, 1, 1], plus what the rows write."""

    ratio: Tensor | None = None
    written: Product | None = None

    def __rmul__(self, ratio: Tensor) -> LightningState:
        return LightningState(ratio)

    def __add__(self, written: Product) -> LightningState:
        return LightningState(self.ratio, written)


class _Torch:
    """Replaces `torch` in the forward of a mixer."""

    def __init__(self, recorder: StateRecorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def matmul(self, left: Tensor, right: Any) -> Any:
        if not isinstance(right, LightningState):
            return Product(left, right)
        assert right.ratio is not None
        assert right.written is not None
        return _read(self._recorder, left, right.written, right.ratio)


def _read(recorder: StateRecorder, queries: Tensor, written: Product, ratio: Tensor) -> Tensor:
    """Record what each row writes and return what it reads, [1, H, n, dv].

    Args:
        recorder: the recorder of the pass.
        queries: [1, H, n, dk].
        written: keys and values.
        ratio: [H, 1, 1].
    """
    readers, keys, values = (each[0].float() for each in (queries, written.keys.mT, written.values))
    decays = ratio[:, :, 0].float().log().expand(-1, keys.shape[1])

    def grow(record: Any, state: Tensor, branching: Branching, part: slice) -> tuple[LightningRows, Tensor]:
        return LightningRows.grown(
            record,
            state.mT,
            branching.ancestors,
            inputs=values[:, part],
            directions=keys[:, part],
            readers=readers[:, part],
            decays=decays[:, part],
        )

    found = recorder.grown((len(keys), keys.shape[-1], values.shape[-1]), grow)
    return torch.cat([*found], dim=1)[None].to(queries.dtype)
