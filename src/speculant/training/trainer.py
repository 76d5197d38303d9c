"""The training loop of a head: steps, measurements of acceptance, checkpoints.

Each step is a function of the previous state, the settings and the data, so a training resumed from a checkpoint gives
the same result as an uninterrupted one (on CPUs bit for bit).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from speculant.core.errors import OutOfMemoryError, SpeculantError, UsageError, is_out_of_memory
from speculant.drafters.heads.head import TargetParts
from speculant.drafters.heads.training.recipe import Recipe
from speculant.training.batches import stream_seed
from speculant.training.checkpoints import load_state, save_state
from speculant.training.evaluate import Acceptance, measure_acceptance
from speculant.training.features import Features
from speculant.training.interrupts import defer_interrupts
from speculant.training.joint.recipe import HeadsWithBackbone
from speculant.training.losses import parse_loss
from speculant.training.optimizers import build_optimizers
from speculant.training.progress import Progress, TrainState
from speculant.training.schedule import rate_factor
from speculant.training.settings import MEMORY_ONLY, TrainSettings
from speculant.training.workers import Workers


class Trainer:
    """One training. The head has the latest weights during it, and the weights to keep after it."""

    def __init__(
        self,
        recipes: Callable[[int], Recipe],
        target: TargetParts,
        features: Features,
        held_out: Features,
        settings: TrainSettings,
        *,
        path: Path,
        about: dict[str, Any],
        workers: Workers | None = None,
        checkpoint_steps: int | None = None,
        checkpoint_minutes: float = 5.0,
        report: Callable[[Progress], object] | None = None,
    ) -> None:
        """Prepare a training.

        Args:
            recipes: returns the head's recipe for a depth.
            target: target of the head.
            features: features of the texts to train on.
            held_out: features of the texts on which acceptance is measured.
            settings: training settings.
            path: path of the training state.
            about: identity of target, data and head: the state of another training is refused.
            workers: the processes that train together.
            checkpoint_steps: steps between checkpoints; None for checkpoints by time only.
            checkpoint_minutes: minutes between checkpoints.
            report: called with the progress from time to time.
        """
        self.settings, self.state = settings, TrainState()
        depths = {settings.depth, settings.measured} | ({1} if settings.depth_from else set())
        self._recipes = {depth: recipes(depth) for depth in sorted(depths)}
        self.head: nn.Module = self._recipes[settings.depth].head
        self._target, self._features, self._held_out = target, features, held_out
        self._path, self._about, self._report = path, about, report or _ignore
        self._workers = workers or Workers()
        self._checkpoint_steps, self._checkpoint_minutes = checkpoint_steps, checkpoint_minutes
        self._loss = parse_loss(settings.loss)
        self._device = next(self.head.parameters()).device
        self._optimizers = build_optimizers(
            self.head,
            settings.optimizer,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            factors=self.head.factors(settings.joint_rate) if isinstance(self.head, HeadsWithBackbone) else {},
        )
        self._sums = torch.zeros(settings.depth + 1, device=self._device)  # sums of losses by depth; last: batch count
        self._started = self._saved = time.monotonic()
        self._begun = TrainState()  # the totals of earlier runs
        self._stopped = False
        self._whole = True  # whether weights and optimizers are at the same step

    def run(self) -> TrainState:
        """Train to the end; return the state, with the weights to keep in the head.

        Raises:
            KeyboardInterrupt: it was interrupted; its state is saved.
            OutOfMemoryError: the device is full; the state before the step is saved.
            SpeculantError: the loss is no longer finite.
        """
        self._started = self._saved = time.monotonic()
        try:
            with defer_interrupts() as interrupt:
                while not self._advance(bool(interrupt)):
                    pass
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self._whole:
                self.save()
            raise OutOfMemoryError(
                f"the device ran out of memory at step {self.state.step + 1}, with {self.settings.texts} texts of up "
                f"to {int(self._features.groups.texts.lengths.max())} tokens and {self.settings.anchors} anchors "
                "each. The training is saved: go on with --resume and fewer --texts or --anchors, and --accumulate "
                "for as many in a step. A new one may use --precision bfloat16, or shorter texts by --length."
            ) from error
        if self._stopped:  # because the first process received a signal
            raise KeyboardInterrupt
        self.head.load_state_dict(self.state.best)
        return self.state

    def resume(self) -> int:
        """Restore the saved state; return its step.

        Raises:
            FileError: it is damaged.
            UsageError: it belongs to another training.
        """
        found = load_state(self._path)
        self._check(json.loads(found["about"]))
        self.head.load_state_dict(found["head"])
        for optimizer, state in zip(self._optimizers, found["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self._sums = found["sums"].to(self._device)
        names = ("step", "seconds", "tokens", "stale", "best", "best_step", "best_score")
        self.state = TrainState(history=json.loads(found["history"]), **{name: found[name] for name in names})
        self._begun = TrainState(self.state.step, self.state.seconds, self.state.tokens)
        return self.state.step

    def save(self) -> None:
        """Write the state."""
        self._features.flush()
        if self._workers.first:
            state = self.state
            save_state(
                self._path,
                {
                    "about": json.dumps(self._identity()),
                    "head": {name: tensor.detach() for name, tensor in self.head.state_dict().items()},
                    "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
                    "sums": self._sums,
                    "step": state.step,
                    "seconds": state.seconds,
                    "tokens": state.tokens,
                    "stale": state.stale,
                    "best": state.best,
                    "best_step": state.best_step,
                    "best_score": state.best_score,
                    "history": json.dumps(state.history),
                },
            )
        self._saved = time.monotonic()

    def _advance(self, interrupted: bool) -> bool:
        """Measure or save if due, else train a step; return whether training has ended."""
        state, settings = self.state, self.settings
        state.seconds = self._begun.seconds + time.monotonic() - self._started
        done, stop, due = self._workers.share_values(
            self._done(), float(interrupted), float(self._save_due()), device=self._device
        )
        known = bool(state.history) and state.history[-1]["step"] == state.step
        if not stop and not known and (done >= 1 or state.step % settings.evaluate_every == 0):
            self._measure(done)
        ended = done >= 1 or bool(settings.patience and state.stale >= settings.patience)
        if stop or ended or due:
            self.save()
        if not stop and not ended:
            self._step(done)
        self._stopped = bool(stop)
        return self._stopped or ended

    def _done(self) -> float:
        """Return the share of the training that is done."""
        steps, minutes = self.settings.steps, self.settings.minutes
        by_steps = self.state.step / steps if steps else 0.0
        return max(by_steps, self.state.seconds / (60 * minutes) if minutes else 0.0)

    def _save_due(self) -> bool:
        by_steps = self._checkpoint_steps and self.state.step and self.state.step % self._checkpoint_steps == 0
        return bool(by_steps) or time.monotonic() - self._saved > 60 * self._checkpoint_minutes

    def _step(self, done: float) -> None:
        """Train one step."""
        settings, state, workers = self.settings, self.state, self._workers
        recipe = self._recipes[settings.depth if done >= settings.depth_from else 1]
        recipe.begin(done)
        for part in range(settings.accumulate):
            number = (state.step * settings.accumulate + part) * workers.count + workers.rank
            batch = self._features.training_batch(number)
            state.tokens += int(batch.lengths.sum()) * workers.count
            if not len(batch.anchors):  # other draft models already predict all of it
                continue
            with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
                torch.manual_seed(stream_seed(settings.seed, number))
                with torch.autocast(self._device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
                    total = torch.zeros((), device=self._device)
                    for depth, output in enumerate(recipe.run(batch, self._target)):
                        loss = self._loss(output.logits, output.target, output.tokens)
                        if output.extra is not None and settings.feature_weight:
                            loss = loss + settings.feature_weight * output.extra
                        total = total + settings.decay**depth * loss
                        self._sums[depth] += loss.detach()
                (total / settings.accumulate).backward()  # type: ignore[no-untyped-call]
            self._sums[-1] += 1
        trained = [weight for weight in self.head.parameters() if weight.requires_grad]
        workers.average(trained)
        if settings.clip:
            nn.utils.clip_grad_norm_(trained, settings.clip)
        factor = rate_factor(settings.schedule, step=state.step, warmup=settings.warmup, progress=done)
        self._whole = False
        for optimizer in self._optimizers:
            for weights in optimizer.param_groups:
                weights["lr"] = settings.lr * factor * weights.get("factor", 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state.step, self._whole = state.step + 1, True
        if state.step % 10 == 0:
            self._report(self._progress(done))

    def _measure(self, done: float) -> None:
        """Measure acceptance, and keep the weights if they are the best so far."""
        state, self._sums = self.state, self._workers.mean(self._sums)
        progress = self._progress(done)
        if not bool(self._sums.isfinite().all()):
            raise SpeculantError(
                f"the loss is no longer a number at step {state.step}. Lower --lr, or lengthen --warmup; the last "
                "checkpoint is kept."
            )
        acceptance = measure_acceptance(self._recipes[self.settings.measured], self._held_out, self._target)
        (score,) = self._workers.share_values(acceptance.greedy, device=self._device)
        best = not state.history or score > state.best_score
        if best or self.settings.keep == "last":
            state.best = {name: tensor.detach().clone() for name, tensor in self.head.state_dict().items()}
            state.best_step = state.step
        state.best_score, state.stale = (score, 0) if best else (state.best_score, state.stale + 1)
        state.history.append({"step": state.step, "losses": progress.losses, **acceptance.record()})
        self._sums.zero_()
        self._report(self._progress(done, progress.losses, acceptance, best))

    def _progress(
        self,
        done: float,
        losses: tuple[float, ...] | None = None,
        acceptance: Acceptance | None = None,
        best: bool = False,
    ) -> Progress:
        state = self.state
        spent = max(1e-9, time.monotonic() - self._started)
        if losses is None:
            losses = tuple((self._sums[:-1] / self._sums[-1].clamp(min=1)).tolist())
        share = max(1e-9, done - self._begun_share())
        left = spent * max(0.0, 1 - done) / share if state.step > self._begun.step + 5 else None
        rate = (state.tokens - self._begun.tokens) / spent
        return Progress(state.step, done, losses, state.seconds, left, rate, acceptance, best)

    def _begun_share(self) -> float:
        steps, minutes = self.settings.steps, self.settings.minutes
        by_steps = self._begun.step / steps if steps else 0.0
        return max(by_steps, self._begun.seconds / (60 * minutes) if minutes else 0.0)

    def _identity(self) -> dict[str, Any]:
        return {**self._about, "settings": self.settings.record()}

    def _check(self, found: dict[str, Any]) -> None:
        """Refuse the state of another training."""
        mine = json.loads(json.dumps(self._identity()))
        wrong = [name for name in self._about if mine[name] != found.get(name)]
        changed = {
            name: value
            for name, value in found["settings"].items()
            if mine["settings"].get(name) != value and name not in MEMORY_ONLY
        }
        if wrong or changed:
            options = ", ".join(f"{name} was {value}" for name, value in changed.items())
            parts = [f"another {' and '.join(wrong)}"] * bool(wrong) + [f"other settings ({options})"] * bool(changed)
            raise UsageError(
                f"the training in {self._path.parent.parent} has {' and '.join(parts)}. Go on with the same command, "
                "or name another folder by --out."
            )


def _ignore(_progress: Progress) -> None:
    """Ignore a progress report."""
