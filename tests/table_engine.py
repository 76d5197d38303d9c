"""The smallest engine: a model that looks up the logits after two tokens in a table, without transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.core.engine import NO_OUTPUTS, Capabilities, Pass, RequestedOutputs
from speculant.core.engine_kind import EngineKind, ModelDescription
from speculant.core.errors import UnsupportedError
from speculant.core.model_engine import ModelEngine, RequestCache
from speculant.core.prepared_request import PreparedRequest
from speculant.core.sampler import GREEDY, Sampling
from speculant.core.tree import UNLIMITED, DraftTree, Int32

END = 2


class TableModel:
    """Logits [4, V, V] by the last two tokens of a text, of the first only the last two bits, so that texts repeat."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.table = 3 * torch.randn((4, vocabulary, vocabulary), generator=torch.Generator().manual_seed(2))
        self.table[..., END] -= 6  # rare

    def logits(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits [R, V] after each text of two tokens or more."""
        return torch.stack([self.table[text[-2] % 4, text[-1]] for text in texts])


class TableCache(RequestCache):
    """The tokens of a text, and the texts that end with its uncommitted rows."""

    def __init__(self, model: TableModel, prompt: list[int]) -> None:
        self._model, self._prompt = model, prompt
        self._read: list[int] = []
        self._rows: list[list[int]] = []

    @property
    def length(self) -> int:
        return len(self._read)

    @property
    def unread(self) -> int:
        return max(0, len(self._prompt) - len(self._read))

    @property
    def depth(self) -> int:
        return UNLIMITED

    def prefill(self, maximum: int | None = None, *, needs: RequestedOutputs = NO_OUTPUTS) -> Pass | None:
        end = len(self._prompt) if maximum is None else self.length + maximum
        self._read += self._prompt[self.length : end]
        return None if self.unread else _finish(self._model.logits([self._read]), needs)

    def forward(
        self, tokens: Int32, parents: Int32, *, needs: RequestedOutputs = NO_OUTPUTS, layers: Any = None, **_: Any
    ) -> Pass:
        first = len(self._rows)
        for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
            self._rows.append([*(self._read if parent < 0 else self._rows[parent]), token])
        return _finish(self._model.logits(self._rows[first:]), needs)

    def keep(self, rows: Sequence[int]) -> None:
        self._read += [self._rows[row][-1] for row in rows]
        self._rows.clear()

    def rollback(self) -> None:
        self._rows.clear()

    def restart(self) -> None:
        self._read.clear()
        self._rows.clear()


class TableEngine(ModelEngine):
    """Looks rows up one after the other."""

    def __init__(self, model: TableModel, notes: Sequence[str]) -> None:
        self._model, self._notes = model, tuple(notes)

    @property
    def model(self) -> TableModel:
        return self._model

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(vocabulary=self._model.vocabulary)

    @property
    def device(self) -> torch.device:
        return self._model.table.device

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    def prepare(
        self,
        ids: Tensor,
        *,
        max_new_tokens: int,
        cache: Any,
        options: Mapping[str, Any],
        constrained: bool = False,
    ) -> PreparedRequest:
        if (others := {*options} - {"temperature"}) or cache is not None:
            raise UnsupportedError(f"tables know no {', '.join(others) or 'cache'}; leave it out.")
        temperature = options.get("temperature", 0)
        return PreparedRequest(
            ids=ids,
            max_length=ids.shape[1] + max_new_tokens,
            ends=frozenset({END}),
            sampling=Sampling(temperature=temperature) if temperature else GREEDY,
            processors=[lambda _, scores: scores / temperature] if temperature else [],
        )

    def open_prepared(self, prepared: PreparedRequest, *, plain: bool) -> TableCache:
        return TableCache(self._model, prepared.ids[0].tolist())

    def forward(
        self, batch: Sequence[tuple[TableCache, int, DraftTree]], needs: RequestedOutputs = NO_OUTPUTS
    ) -> list[Pass]:
        return [cache.forward(*tree.rows(root), needs=needs) for cache, root, tree in batch]

    def read(self, arrays: Sequence[Tensor]) -> list[list[Any]]:
        return [array.tolist() for array in arrays]


class TableKind(EngineKind):
    """What the table of engines names."""

    def vocabulary(self, model: TableModel) -> int:
        return model.vocabulary

    def describe(self, model: TableModel) -> ModelDescription:
        return ModelDescription(form="a table", device="cpu", dtype="float32")

    def open(self, model: TableModel, *, fast: Any, notes: Sequence[str], strict: bool) -> TableEngine:
        return TableEngine(model, notes)


def _finish(logits: Tensor, needs: RequestedOutputs) -> Pass:
    if needs.hidden_layers:
        raise UnsupportedError("a table has no hidden states; use a drafter that needs none.")
    if not needs.top_k:
        return Pass(logits=logits)
    values, ids = logits.topk(needs.top_k)
    return Pass(logits=logits, top_ids=ids.numpy().astype(np.int32), top_logits=values.numpy())
