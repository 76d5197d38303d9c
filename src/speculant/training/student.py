"""A draft model in training: a transformers causal LM that is trained like a head, by a recipe."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor, nn

from speculant.engines.hf.views.target_parts import HFTargetParts


class Student(nn.Module):
    """A draft model. Dropout stays off, as in drafting.

    Attributes:
        model: the model.
        vocabulary: number V' of its logits; models of a family may pad the same vocabulary differently.
        positions: maximum number of positions; None for no limit.
        taps, depth, ids: as for a head that reads no hidden states, drafts to any depth, and has the target's tokens.
    """

    taps: tuple[int, ...] = ()
    depth: int | None = None
    ids: Tensor | None = None

    def __init__(self, model: Any) -> None:
        """Wrap a model.

        Raises:
            UnsupportedError: its parts were not found.
        """
        super().__init__()
        self.model = model
        self._parts = HFTargetParts(model)
        self.vocabulary, self.positions = self._parts.vocabulary, self._parts.positions

    def train(self, _mode: bool = True) -> Self:
        """Stay in evaluation mode."""
        return super().train(False)

    def states(self, ids: Tensor) -> Tensor:
        """Return the last hidden states [B, T, D'] of right-padded texts Int64[B, T]."""
        found: Tensor = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return found

    def project(self, states: Tensor) -> Tensor:
        """Return the logits [..., V'] of the token after each state [..., D']."""
        return self._parts.project(states)
