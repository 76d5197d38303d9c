"""One update: a few optimizer steps on a copy of the weights, evaluated on held-out text before they are used.

Liu et al.: "Online Speculative Decoding", ICML 2024, arXiv 2310.07177: forward KL to the target at wrongly drafted
positions, AdamW with a constant rate. The evaluation is this project's addition: an update that lowers the acceptance
on windows that are never trained on is dropped, so an input that poisons the buffer costs at most speed. It cannot
change the text, since the verifier always gets the q that tokens were actually drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch

from speculant.training.online.buffer import WindowBuffer
from speculant.training.online.learner import Learner, publish, revert
from speculant.training.online.settings import OnlineSettings
from speculant.training.online.window import TextWindow

_CLIP = 1.0  # maximum gradient norm
BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Update:
    """The report of an update.

    Attributes:
        steps: number of optimizer steps taken.
        loss: mean of their losses.
        before, after: mean acceptance on the held-out windows; for heads the tokens that a chain would gain.
        used: whether the new weights are used for drafting.
        error: why it failed; "" if it did not.
    """

    steps: int = 0
    loss: float = 0.0
    before: float = 0.0
    after: float = 0.0
    used: bool = False
    error: str = ""


class Updater:
    """Runs the updates of one drafter, one at a time."""

    def __init__(
        self, learner: Learner, buffer: WindowBuffer, settings: OnlineSettings, lock: AbstractContextManager[object]
    ) -> None:
        """Take the learner and its data.

        Args:
            learner: the weights.
            buffer: the windows.
            settings: settings of the updates.
            lock: held while the drafting weights are replaced.
        """
        self._learner, self._buffer, self._settings, self._lock = learner, buffer, settings, lock
        self._random = np.random.default_rng(settings.seed)
        self._optimizer, self._trained = self._new_optimizer(), 0  # windows from this number on were never trained on

    def update(self, proceed: Callable[[], bool]) -> Update | None:
        """Run an update, and use it if it does not lower the acceptance; None if there is too little to learn from.

        Args:
            proceed: called before every step and every evaluated window; waits for its turn, and returns whether to
                continue. If not, the update is dropped.
        """
        train, held_out = self._buffer.split()
        train = [(number, window) for number, window in train if window.wrong.any()]
        held_out = held_out[-self._settings.held_out :]
        if not train or not held_out:
            return None
        fresh = [window for number, window in train if number >= self._trained] or [window for _, window in train]
        try:
            before = self._acceptance(held_out, proceed)
            losses = list[float]()
            for _ in range(self._settings.steps):
                if not proceed():
                    self.reset()
                    return None
                loss = self._step(self._draw_windows(fresh, [window for _, window in train]))
                if loss is not None:
                    losses.append(loss)
            after = self._acceptance(held_out, proceed)
            if before is None or after is None:
                self.reset()
                return None
            used = bool(losses) and bool(np.isfinite(losses).all()) and after >= before and self._finite()
            if used:
                with self._lock:
                    publish(self._learner)
            else:
                self.reset()
        except BaseException:
            self.reset()
            raise
        self._trained = train[-1][0] + 1
        return Update(len(losses), float(np.mean(losses)) if losses else 0.0, before, after, used)

    def reset(self) -> None:
        """Reset to the drafting weights."""
        revert(self._learner)
        self._optimizer = self._new_optimizer()

    def _finite(self) -> bool:
        """Return whether all weights are finite: a finite loss may have gradients that are not."""
        return all(bool(weight.isfinite().all()) for weight in self._learner.copy.parameters())

    def _step(self, windows: Sequence[TextWindow]) -> float | None:
        """Take an optimizer step on the mean loss of some windows; gradients are computed for the copy alone."""
        parameters = [*self._learner.copy.parameters()]
        sums: list[torch.Tensor] | None = None
        total, count = 0.0, 0
        with torch.enable_grad():
            for window in windows:
                loss = self._learner.loss(window)
                if loss is None or not loss.requires_grad:
                    continue
                found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
                sums = list(found) if sums is None else [one + other for one, other in zip(sums, found, strict=True)]
                total, count = total + float(loss.detach()), count + 1
        if sums is None:
            return None
        for parameter, gradient in zip(parameters, sums, strict=True):
            parameter.grad = gradient / count
        torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total / count

    def _draw_windows(self, fresh: Sequence[TextWindow], known: Sequence[TextWindow]) -> list[TextWindow]:
        """Return the windows of a step: half from those added since the last update, half from all."""
        count = self._settings.batch
        groups = (fresh, count - count // 2), (known, count // 2)
        return [
            group[place]
            for group, maximum in groups
            for place in self._random.choice(len(group), min(maximum, len(group)), replace=False).tolist()
        ]

    def _acceptance(self, windows: Sequence[TextWindow], proceed: Callable[[], bool]) -> float | None:
        """Return the mean acceptance; None if interrupted."""
        found = list[tuple[float, int]]()
        for window in windows:
            if not proceed():
                return None
            found.append(self._learner.acceptance(window))
        return sum(accepted for accepted, _ in found) / max(1, sum(count for _, count in found))

    def _new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self._learner.copy.parameters(), lr=self._settings.lr, betas=BETAS, weight_decay=0.0)
