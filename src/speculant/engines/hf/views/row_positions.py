"""Makes models that place rows by their cache slots place the rows of a draft by their depths instead.

Two kinds of modules do so, and accept no position ids:

- Position embeddings looked up from the cache's length on (BART, mBART, Marian, Pegasus, M2M100, NLLB, Blenderbot):
  the view asks the module for those of the rows, or if it only takes a range, for a range that covers all.
- A bias by the distance of slots (T5, mT5, LongT5, Switch): the view computes it from the distances of positions.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from speculant.engines.hf.views.model_view import twin, view_module

_LENGTH = "past_key_values_length"  # the argument of modules of the first kind


@dataclass(frozen=True, slots=True, eq=False)
class RowPlaces:
    """The positions of one sequence's rows.

    Attributes:
        rows: Int64[n], positions of its rows in a pass.
        keys: Int64[L], positions of all rows in its cache, including these.
    """

    rows: Tensor
    keys: Tensor


def find_placing(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the modules in a model's decoder that place rows by their slots."""
    decoder: nn.Module = model.get_decoder() if hasattr(model, "get_decoder") else model  # type: ignore[operator]
    found = [
        name
        for name, module in decoder.named_modules()
        if (name.endswith("embed_positions") and _LENGTH in inspect.signature(module.forward).parameters)
        or (getattr(module, "has_relative_attention_bias", False) and hasattr(module, "_relative_position_bucket"))
    ]
    prefix = next((name for name, module in model.named_modules() if module is decoder), "")
    return tuple(f"{prefix}.{name}" if prefix else name for name in found)


def with_positions(source: Any, names: tuple[str, ...], places: Sequence[RowPlaces]) -> Any:
    """Return a view of a model whose decoder places rows at given positions.

    Args:
        source: the model, or a view of it.
        names: from `find_placing`.
        places: positions of the sequences of the pass, in order.

    Raises:
        UnsupportedError: a module on the way has a forward of its own (compiled, or patched).
    """
    view, rows = source, torch.cat([each.rows for each in places])
    for name in names:
        path = tuple(name.split("."))
        inner = view
        for each in path:
            inner = getattr(inner, each)
        placed = _placed_bias(inner, places) if hasattr(inner, "compute_bias") else _PlacedEmbeddings(inner, rows)
        view = view_module(view, path, placed)
    return view


class _PlacedEmbeddings(nn.Module):
    """Embeddings of given positions, from a module that only takes a range."""

    def __init__(self, inner: nn.Module, rows: Tensor) -> None:
        super().__init__()
        self._inner, self._rows = [inner], rows  # not a submodule: it stays the model's

    def forward(self, given: Any, *args: Any, **options: Any) -> Tensor:
        inner = self._inner[0]
        if options.get("position_ids") is not None and options["position_ids"].ndim == 1:  # made by the decoder
            known: Tensor = inner(given, *args, **options | {"position_ids": self._rows})
            return known
        first, last = int(self._rows.min()), int(self._rows.max())
        count = last - first + 1
        if isinstance(given, Tensor):  # ids, of which only the number counts, or embeddings [1, n, D]
            given = given[:, :1].expand(-1, count, *given.shape[2:])
        else:  # a shape
            given = (given[0], count, *given[2:])
        asked: dict[str, Any] = {_LENGTH: first}
        if "inputs_embeds" in list(inspect.signature(inner.forward).parameters)[1:]:
            asked["inputs_embeds"] = None
        found: Tensor = inner(given, **asked)
        return found[..., self._rows - first, :]


def _placed_bias(inner: nn.Module, places: Sequence[RowPlaces]) -> nn.Module:
    """Return a view of an attention with a bias by the distance of positions, one for each sequence."""
    view = twin(inner, modules={})

    def compute_bias(*_args: Any, **_options: Any) -> Tensor | tuple[Tensor, ...]:
        found = tuple(bias(each) for each in places)
        return found[0] if len(found) == 1 else found

    def bias(each: RowPlaces) -> Tensor:
        distances = each.keys[None] - each.rows[:, None]
        found: Any = inner._relative_position_bucket
        options: dict[str, Any] = {  # UMT5's takes none
            "bidirectional": not getattr(inner, "is_decoder", True),  # Pix2Struct's is nothing else
            "num_buckets": inner.relative_attention_num_buckets,
            "max_distance": inner.relative_attention_max_distance,
        }
        known = inspect.signature(found).parameters
        buckets = found(distances, **{name: value for name, value in options.items() if name in known})
        values: Tensor = inner.relative_attention_bias(buckets)  # type: ignore[operator]
        return values.permute(2, 0, 1)[None]

    view.__dict__["compute_bias"] = compute_bias
    return view
