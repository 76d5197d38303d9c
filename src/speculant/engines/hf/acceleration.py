"""The interface between the engine and accelerations: faster code for some of a model's passes, with equal results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True, eq=False)
class LayerPass:
    """A pass through consecutive layers.

    Attributes:
        given: Int64[B, n] tokens, or the states [B, n, D] that enter the first of the layers, if that is not 0.
        positions: Int64[B, n].
        mask: mask of the attention, [1, 1, n, L]; None if single rows attend to all rows before them.
        cache: the cache of these rows, to which they are appended.
        layers: the layers; None for all.
        kept: the number of last rows whose logits are requested, 0 for all, or an index of them; None for none.
        taps: layers whose output is requested.
    """

    given: Tensor
    positions: Tensor
    mask: Tensor | None
    cache: Any
    layers: range | None = None
    kept: int | Tensor | None = 0
    taps: Sequence[int] = ()


@dataclass(frozen=True, slots=True, eq=False)
class LayerOutputs:
    """The outputs of some layers.

    Attributes:
        logits: [B, R, V], of the requested rows behind the last layer; None if none were requested.
        states: [B, n, D] by tapped layer, with that of the last one.
    """

    logits: Tensor | None
    states: Mapping[int, Tensor]


class Acceleration(Protocol):
    """A model prepared for faster passes."""

    @property
    def graphs(self) -> Graphs | None: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def prompt_rows(self) -> int | None:
        """Maximum prompt tokens per pass, above which passes take longer per token; None for no limit."""

    def model_for(self, model: Any, rows: int, *, whole: bool = True, run: Sublayers | None = None) -> Any:
        """Return the callable for a pass over `rows` rows: the model itself, or a copy that shares its weights.

        Args:
            model: the model.
            rows: number of rows in the pass.
            whole: whether the pass runs its layers in sequence, with nothing changed between them.
            run: the sublayers that it runs; None for all, or for those from any layer on.
        """

    def run_layers(self, model: Any, asked: LayerPass) -> LayerOutputs | None:
        """Run layers of a model and what surrounds them in a few calls, instead of a pass of the model's own code.

        Returns:
            None, with nothing done, if the model's own code has to run.
        """

    def keep(self, cache: DynamicCache, start: int, rows: list[int]) -> bool:
        """Keep rows as `keep_rows` does; return False, with nothing changed, if there is no faster code for a cache."""

    def attention_for(self, implementation: str) -> str:
        """Return the attention function to use in place of the one that the model's config names."""

    def check_weights(self) -> None:
        """Detect changes of the weights since the last request."""

    def settings(self) -> tuple[Any, ...]:
        """Return everything but the model that affects the cost of a pass: a key for stored costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPasses:
    """Passes of the model's own code, possibly recorded."""

    graphs: Graphs | None = None
    notes: tuple[str, ...] = ()
    prompt_rows: int | None = None

    def model_for(self, model: Any, rows: int, *, whole: bool = True, run: Sublayers | None = None) -> Any:
        return model

    def run_layers(self, model: Any, asked: LayerPass) -> LayerOutputs | None:
        return None

    def keep(self, cache: DynamicCache, start: int, rows: list[int]) -> bool:
        return self.graphs is not None and self.graphs.keep(cache, start, rows)

    def attention_for(self, implementation: str) -> str:
        return implementation

    def check_weights(self) -> None:
        """Do nothing: no state depends on the weights."""

    def settings(self) -> tuple[Any, ...]:
        return (0, 0, [])
