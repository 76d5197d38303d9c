"""The interface between the engine and accelerations: faster code for some of a model's passes, with equal results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.sublayers import Sublayers
from speculant.core.tree import Bool, Int64
from speculant.engines.hf.draft_rows import DraftRows


class GraphSequence(Protocol):
    """The properties of a sequence that CUDA graphs use."""

    @property
    def cache(self) -> DynamicCache: ...

    @property
    def length(self) -> int:
        """The number of committed tokens."""


class Graphs(Protocol):
    """Passes recorded as CUDA graphs."""

    def forward(self, sequence: GraphSequence, tokens: Int64, rows: DraftRows, *, shift: int, seen: Bool | None) -> Any:
        """Run a pass over rows below the committed tokens; return Logits[R, V], or None if it needs a plain pass.

        Args:
            sequence: a sequence on this model with committed rows only.
            tokens: Int64[R].
            rows: the R rows.
            shift: cache slot minus position.
            seen: Bool[T], False at the prompt's padding; None without padding.
        """

    def keep(self, cache: DynamicCache, start: int, rows: list[int]) -> bool:
        """Keep rows as `keep_rows` does; return False if the cache is not in the graphs' buffers."""


class Acceleration(Protocol):
    """A model prepared for faster passes."""

    @property
    def graphs(self) -> Graphs | None: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def model_for(self, model: Any, rows: int, *, whole: bool = True, run: Sublayers | None = None) -> Any:
        """Return the callable for a pass over `rows` rows: the model itself, or a copy that shares its weights.

        Args:
            model: the model.
            rows: number of rows in the pass.
            whole: whether the pass runs its layers in sequence, with nothing changed between them.
            run: the sublayers that it runs; None for all, or for those from any layer on.
        """

    def run_whole(
        self, model: Any, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Any, kept: int | Tensor
    ) -> Tensor | None:
        """Run a pass of the whole model in a few calls; return None, with nothing done, if the model's code has to run.

        Args:
            model: the model.
            ids: Int64[B, n].
            positions: Int64[B, n].
            mask: the mask of attention, [1, 1, n, L]; None if single rows attend to all rows before them.
            cache: the cache to attend to; the rows are appended to it.
            kept: the number of last rows whose logits are requested, 0 for all, or an index of them.

        Returns:
            Logits [B, R, V].
        """

    def keep(self, cache: DynamicCache, start: int, rows: list[int]) -> bool:
        """Keep rows as `keep_rows` does; return False, with nothing changed, if there is no faster code for a cache."""

    def attention_for(self, implementation: str) -> str:
        """Return the attention function to use in place of the one that the model's config names."""

    def check_weights(self) -> None:
        """Detect changes of the weights since the last request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPasses:
    """Passes of the model's own code, possibly recorded."""

    graphs: Graphs | None = None
    notes: tuple[str, ...] = ()

    def model_for(self, model: Any, rows: int, *, whole: bool = True, run: Sublayers | None = None) -> Any:
        return model

    def run_whole(
        self, model: Any, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Any, kept: int | Tensor
    ) -> Tensor | None:
        return None

    def keep(self, cache: DynamicCache, start: int, rows: list[int]) -> bool:
        return self.graphs is not None and self.graphs.keep(cache, start, rows)

    def attention_for(self, implementation: str) -> str:
        return implementation

    def check_weights(self) -> None:
        """Do nothing: no state depends on the weights."""
