"""An engine that runs each text only once, for statistics over many samples of few texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.core.engine import NO_OUTPUTS, Capabilities, Pass, RequestedOutputs
from speculant.core.tree import ROOT, DraftTree, Int32
from speculant.engines.hf.engine import HFEngine

Text = tuple[int, ...]


class MemoEngine:
    """Passes of a transformers model without a KV cache; results are memoised by text.

    Attributes:
        model: the model.
    """

    def __init__(self, model: Any) -> None:
        self.model, self._logits = model, dict[Text, Tensor]()
        self._engine, self._states = HFEngine(model), dict[tuple[Text, tuple[int, ...]], Tensor]()
        self.capabilities = Capabilities(vocabulary=model.config.vocab_size)

    def open(self, prompt: Int32) -> MemoCache:
        """Return a sequence for a prompt Int32[T]."""
        return MemoCache(self, tuple(prompt.tolist()))

    def logits(self, texts: Sequence[Text]) -> Tensor:
        """Return the logits [n, V] after each text."""
        for text in texts:
            if text not in self._logits:
                with torch.no_grad():
                    self._logits[text] = self.model(torch.tensor([text])).logits[0, -1]
        return torch.stack([self._logits[text] for text in texts])

    def states(self, text: Text, layers: tuple[int, ...]) -> Tensor:
        """Return the outputs [T, L', D] of the given decoder layers at all tokens of a text."""
        if (text, layers) not in self._states:
            cache = self._engine.open(torch.tensor([text]))
            result = cache.prefill(needs=RequestedOutputs(hidden_layers=layers, prompt=True))
            assert result is not None
            self._states[text, layers] = result.hidden
        return self._states[text, layers]

    def result(self, texts: Sequence[Text], needs: RequestedOutputs) -> Pass:
        """Return the pass over rows, given the text of each, with the top tokens and hidden states in `needs`."""
        logits, layers = self.logits(texts), needs.hidden_layers
        hidden = torch.stack([self.states(text, layers)[-1] for text in texts]) if layers else None
        if not needs.top_k:
            return Pass(logits=logits, hidden=hidden)
        best = logits.topk(needs.top_k)
        return Pass(
            logits=logits, hidden=hidden, top_ids=best.indices.numpy().astype(np.int32), top_logits=best.values.numpy()
        )

    def prepare_check(self, batch: Sequence[tuple[MemoCache, int, DraftTree]]) -> None:
        """Do nothing: every pass is trusted."""

    def forward(
        self, batch: Sequence[tuple[MemoCache, int, DraftTree]], needs: RequestedOutputs = NO_OUTPUTS
    ) -> list[Pass]:
        """Return the passes over each sequence's root and nodes; see `core.engine.Engine`."""
        return [
            cache.forward([root, *draft.tokens], [ROOT, *(draft.parents + 1)], needs=needs)
            for cache, root, draft in batch
        ]

    def prefill(
        self, batch: Sequence[tuple[MemoCache, int | None]], needs: RequestedOutputs = NO_OUTPUTS
    ) -> list[Pass | None]:
        """Read prompts."""
        return [cache.prefill(maximum, needs=needs) for cache, maximum in batch]

    def read(self, arrays: Sequence[Tensor]) -> list[list[Any]]:
        """Return the arrays as lists."""
        return [array.tolist() for array in arrays]


class MemoCache:
    """One sequence; see `core.engine.TargetCache`."""

    depth = room = 1 << 20
    trees = True

    def __init__(self, engine: MemoEngine, prompt: Text) -> None:
        self._engine, self._text, self._rows = engine, prompt, list[Text]()
        self.length, self.unread = 0, len(prompt)

    def prefill(self, maximum: int | None = None, *, needs: RequestedOutputs = NO_OUTPUTS) -> Pass:
        """Read the prompt."""
        self.length, self.unread = len(self._text), 0
        found = self._engine.result([self._text], needs)
        if not (needs.hidden_layers and needs.prompt):
            return found
        return replace(found, hidden=self._engine.states(self._text, needs.hidden_layers))

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int], *, needs: RequestedOutputs = NO_OUTPUTS, layers: Any = None
    ) -> Pass:
        """Append rows."""
        first = len(self._rows)
        for token, parent in zip(tokens, parents, strict=True):
            above = self._text if parent == ROOT else self._rows[parent]
            self._rows.append((*above, int(token)))
        return self._engine.result(self._rows[first:], needs)

    def check(self, draft: DraftTree) -> None:
        """Accept any draft."""

    def keep(self, rows: Sequence[int]) -> None:
        """Commit a path."""
        if len(rows):
            self._text = self._rows[rows[-1]]
        self._rows = []

    def rollback(self) -> None:
        """Drop the rows."""
        self._rows = []

    def restart(self) -> None:
        """Drop the rows."""
        self._rows = []

    def release(self) -> None:
        """Do nothing, since no memory is held."""
