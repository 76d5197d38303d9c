"""Online learning of a draft model: forward KL to the target's top tokens, renormalised, at wrongly drafted positions.

The target's probabilities beyond its top tokens are unknown, so q is compared with p restricted to those. Windows are
run one at a time, so nothing is padded.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.training.online.learner import Learner, rate_drafts
from speculant.training.online.window import TextWindow


class DraftModelLearner(Learner):
    """A causal LM with the target's vocabulary."""

    states = False

    def __init__(self, model: Any, *, keeps_logits: bool) -> None:
        """Copy a model.

        Args:
            model: a transformers model, or one with the same call signature.
            keeps_logits: whether it accepts `logits_to_keep`, so that only the needed logits are computed.
        """
        self.live, self._keeps_logits = model, keeps_logits
        self.copy = copy.deepcopy(model).float().eval().requires_grad_(True)

    def loss(self, window: TextWindow) -> Tensor | None:
        rows = np.flatnonzero(window.known & (window.wrong > 0))
        if not len(rows):
            return None
        logits = self._logits(window, rows)
        ids, p, usable = self._target(window, rows, logits)
        if not bool(usable.any()):
            return None
        log_q = logits.log_softmax(-1).gather(1, ids)
        kl = (p * (p.clamp_min(1e-9).log() - log_q)).sum(-1)
        return kl[usable].mean()

    @torch.no_grad()
    def acceptance(self, window: TextWindow) -> tuple[float, int]:
        rows = np.flatnonzero(window.known)
        logits = self._logits(window, rows)
        ids, p, usable = self._target(window, rows, logits)
        q = logits.softmax(-1)
        p = torch.zeros_like(q).scatter_add_(1, ids, p)
        found = rate_drafts(p, q, greedy=window.greedy) * usable  # a token that the draft model lacks is never accepted
        return float(found.sum()), len(rows)

    def _logits(self, window: TextWindow, rows: np.ndarray[Any, Any]) -> Tensor:
        """Return the copy's logits [n, V'] after the tokens at these positions."""
        device = next(self.copy.parameters()).device
        known = int(self.copy.config.get_text_config(decoder=True).vocab_size)
        tokens = torch.from_numpy(window.tokens).long()
        ids = torch.where(tokens < known, tokens, 0)[None].to(device)
        places = torch.from_numpy(rows).to(device)
        if self._keeps_logits:
            kept: Tensor = self.copy(input_ids=ids, use_cache=False, logits_to_keep=places).logits[0]
            return kept.float()
        found: Tensor = self.copy(input_ids=ids, use_cache=False).logits[0, places]
        return found.float()

    def _target(self, window: TextWindow, rows: np.ndarray[Any, Any], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the target's top ids [n, k], their probabilities [n, k], and where the copy knows the top, Bool[n]."""
        assert window.top_ids is not None
        assert window.top_logits is not None
        ids = torch.from_numpy(window.top_ids[rows]).long().to(like.device)
        logits = torch.from_numpy(window.top_logits[rows].astype(np.float32)).to(like.device)
        known = ids < like.shape[-1]
        p = logits.softmax(-1) * known
        usable = known[:, 0]  # otherwise most of p is missing
        return torch.where(known, ids, 0), p / p.sum(-1, keepdim=True).clamp_min(1e-9), usable
