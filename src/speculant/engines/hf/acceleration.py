"""What the engine asks of an acceleration: faster code for some of a model's passes, the results being the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from transformers.cache_utils import DynamicCache

from speculant.core.tree import Bool, Int64
from speculant.engines.hf.draft_rows import DraftRows


class GraphSequence(Protocol):
    """What CUDA graphs need to know of a sequence."""

    @property
    def cache(self) -> DynamicCache: ...

    @property
    def length(self) -> int:
        """How many tokens are committed."""


class Graphs(Protocol):
    """Passes recorded as CUDA graphs."""

    def forward(self, sequence: GraphSequence, tokens: Int64, rows: DraftRows, *, shift: int, seen: Bool | None) -> Any:
        """Run a pass over rows below the committed tokens; return Logits[R, V], or None where only a plain pass can.

        Args:
            sequence: on this model, with no rows but committed ones.
            tokens: Int64[R].
            rows: R rows.
            shift: cache slot minus position.
            seen: Bool[T], False at the prompt's padding, or None.
        """

    def keep(self, cache: DynamicCache, start: int, rows: list[int]) -> bool:
        """Do what `keep_rows` does; return False where the cache is not in the graphs' buffers."""


class Acceleration(Protocol):
    """A prepared model."""

    @property
    def graphs(self) -> Graphs | None: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def model_for(self, model: Any, rows: int, *, whole: bool = True, stop: int | None = None) -> Any:
        """Return what to call for a pass of the model over as many rows: itself, or a copy that shares its weights.

        Args:
            model: the model.
            rows: of the pass.
            whole: whether the pass runs all of its layers, or all of some that follow each other.
            stop: how many of the first layers it ends behind; None for all.
        """

    def attention_for(self, implementation: str) -> str:
        """Return the name of the attention function to use where the model's config names this one."""

    def check_weights(self) -> None:
        """Notice changes of the weights since the last request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPasses:
    """The model's own code, possibly recorded."""

    graphs: Graphs | None = None
    notes: tuple[str, ...] = ()

    def model_for(self, model: Any, rows: int, *, whole: bool = True, stop: int | None = None) -> Any:
        return model

    def attention_for(self, implementation: str) -> str:
        return implementation

    def check_weights(self) -> None:
        """Nothing is kept of the weights."""
