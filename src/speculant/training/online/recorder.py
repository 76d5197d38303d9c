"""Records one request round by round, and cuts its text into windows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from speculant.core.drafter import SessionRequest, Verified
from speculant.core.tree import ROOT, Array, Float32, Int32
from speculant.training.online.window import TextWindow

_CONTEXT = 4  # a window starts with a quarter of context: the end of the prompt or of the previous window


class RejectionRecorder:
    """Records one request. All tokens but the last, the root, have rows.

    Hidden states stay on their device until a window is complete, so that no round waits for a transfer.
    """

    def __init__(
        self, start: SessionRequest, emit: Callable[[TextWindow], None], *, maximum: int, states: bool
    ) -> None:
        """Start a request.

        Args:
            start: start of its session.
            emit: receives each window.
            maximum: approximate maximum tokens per window.
            states: whether to store hidden states; otherwise the target's top tokens.
        """
        self._emit, self._maximum, self._states = emit, maximum, states
        self._greedy = not start.sampling.temperature
        self._tokens: list[int] = start.prompt.tolist()
        self._known: list[bool] = []
        self._wrong: list[int] = []
        self._tops: list[tuple[Int32, Float32] | None] = []
        self._hidden: list[Tensor] = []

    def observe(self, verified: Verified) -> None:
        """Record a round; the first call has the prompt's pass and the token after it."""
        accepted, hidden = verified.path.tolist(), verified.hidden
        rows = [0, *(node + 1 for node in accepted)]
        if not self._known:
            context = min(len(self._tokens), max(1, self._maximum // _CONTEXT))
            context = min(context, len(hidden)) if self._states else context
            self._tokens = self._tokens[-context:]
            self._known, self._wrong = [False] * (context - 1), [0] * (context - 1)
            self._tops = [None] * (context - 1)
            hidden = hidden[-context:] if self._states else None
        elif self._states:
            hidden = hidden[rows]
        self._known += [True] * len(rows)
        self._wrong += [0] * len(accepted) + [len(accepted) + 1 if has_rejection(verified) else 0]
        if self._states:
            self._hidden.append(hidden.clone())  # cloned, since a slice would keep the whole pass alive
        else:
            assert verified.top_ids is not None
            assert verified.top_logits is not None
            self._tops += [(verified.top_ids[row].copy(), verified.top_logits[row].copy()) for row in rows]
        self._tokens += verified.tokens.tolist()
        if len(self._known) >= self._maximum:
            self.close()
            self._keep_context()

    def close(self) -> None:
        """Complete the window."""
        if not any(self._known):
            return
        rows = len(self._known)
        ids, logits = self._best_tokens()
        window = TextWindow(
            tokens=np.array(self._tokens[:rows], np.int32),
            known=np.array(self._known),
            wrong=np.array(self._wrong, np.int32),
            greedy=self._greedy,
            top_ids=ids,
            top_logits=logits,
            hidden=to_16_bits(torch.cat(self._hidden)) if self._states else None,
        )
        self._emit(window)

    def _keep_context(self) -> None:
        kept = max(1, self._maximum // _CONTEXT)
        self._tokens, self._tops = self._tokens[-kept - 1 :], self._tops[-kept:]
        self._known, self._wrong = [False] * kept, [0] * kept
        if self._states:
            self._hidden = [torch.cat(self._hidden)[-kept:].clone()]

    def _best_tokens(self) -> tuple[Array | None, Array | None]:
        if self._states:
            return None, None
        k = max(len(top[0]) for top in self._tops if top is not None)
        ids, logits = np.zeros((len(self._tops), k), np.int32), np.zeros((len(self._tops), k), np.float16)
        for place, top in enumerate(self._tops):
            if top is not None:
                ids[place] = top[0]
                logits[place] = np.maximum(top[1] - top[1].max(), -1e4)
        return ids, logits


def has_rejection(verified: Verified) -> bool:
    """Return whether tokens were drafted at the end of the accepted path, and all differ from the text's next token."""
    end = int(verified.path[-1]) if len(verified.path) else ROOT
    children = verified.tree.tokens[verified.tree.parents == end]
    return len(children) > 0 and int(verified.tokens[-1]) not in children


def to_16_bits(hidden: Tensor) -> Array:
    """Return states on the host as Float16, or as bfloat16 bits if they have that dtype or are too large."""
    values = hidden.detach().float().cpu()
    if hidden.dtype is not torch.bfloat16 and float(values.abs().max()) < float(np.finfo(np.float16).max):
        return values.numpy().astype(np.float16)
    return values.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def from_16_bits(states: Array) -> Tensor:
    """Return the result of `to_16_bits` as Float32 states."""
    if states.dtype == np.uint16:
        return torch.from_numpy(states.view(np.int16).copy()).view(torch.bfloat16).float()
    return torch.from_numpy(states.astype(np.float32))
