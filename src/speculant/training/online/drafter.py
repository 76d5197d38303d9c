"""A drafter that learns while it drafts: it wraps another one, and records how the target verifies its drafts.

The decoding round is unaware of it. It belongs to `training`, since heads learn by their training recipes. A session
forwards everything to one of the inner drafter; its text is cut into windows, and an update is requested after a number
of requests. The lock is held whenever the inner drafter runs its model and while new weights are copied in, so weights
change only between drafts. An open session continues: cached keys and values of old weights can only cost acceptance.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speculant.core.drafter import Budget, Drafter, Persistent, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import ForeignMemoryError, UnsupportedError
from speculant.core.tree import Array, DraftTree, Int32
from speculant.core.wrapped_session import WrappedSession
from speculant.memory.file import read_memory, write_memory
from speculant.training.online.buffer import WindowBuffer
from speculant.training.online.head import with_last
from speculant.training.online.learner import Learner
from speculant.training.online.recorder import RejectionRecorder, from_16_bits
from speculant.training.online.settings import OnlineSettings
from speculant.training.online.updates import Update, Updater
from speculant.training.online.worker import Worker

KIND = "online"
_WEIGHTS, _WINDOWS = "weights/", "windows/"


class OnlineDrafter(Drafter, Persistent):
    """Drafts with one model or head for all requests, and distils it to the target meanwhile.

    Attributes:
        inner: the wrapped drafter.
    """

    def __init__(self, inner: Drafter, learner: Learner, *, settings: OnlineSettings, tokenizer: str = "") -> None:
        """Take a drafter and its weights.

        Args:
            inner: the drafter to wrap.
            learner: learner of its weights; `learner.live` is modified in place.
            settings: when and how it learns.
            tokenizer: fingerprint of the tokenizer for saved memories.

        Raises:
            UnsupportedError: the drafter has a memory of its own.
        """
        if isinstance(inner, Persistent):
            raise UnsupportedError(
                f"online distillation saves its own memory, and {type(inner).__name__} keeps another; "
                "use a method without one, such as 'draft-model' or 'eagle'."
            )
        self.inner, self._learner, self._settings, self._tokenizer = inner, learner, settings, tokenizer
        self._states = learner.states  # even for heads that read only text, which run as in training
        self._lock = threading.RLock()
        self._buffer = WindowBuffer(settings.buffer)
        self._updater = Updater(learner, self._buffer, settings, self._lock)
        self._worker = Worker(self._updater, idle=settings.when == "idle")
        self._requests, self._counting = 0, threading.Lock()
        self._finish = weakref.finalize(self, self._worker.close)  # also runs before the interpreter exits

    @property
    def needs(self) -> RequestedOutputs:
        """The inner drafter's needs, plus the target's distributions: for heads by the last layer's states."""
        needs = self.inner.needs
        if self._states:
            return replace(needs, hidden_layers=with_last(needs.hidden_layers), hidden_context=0)
        return replace(needs, top_k=max(needs.top_k, self._settings.top_k), explores=False, always=True)

    @property
    def updates(self) -> list[Update]:
        """Reports of the last 256 updates."""
        return self._worker.updates

    @property
    def busy(self) -> bool:
        """Whether an update is requested or running."""
        return self._worker.busy

    def open(self, start: SessionRequest) -> Session:
        with self._lock:
            session = self.inner.open(start)
        self._worker.change_open(1)
        recorder = RejectionRecorder(start, self._buffer.add, maximum=self._settings.window, states=self._states)
        return OnlineSession(self, session, recorder)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[Budget]) -> list[DraftTree]:
        inner = [session.inner for session in sessions if isinstance(session, OnlineSession)]
        with self._lock:
            return self.inner.propose(inner, budgets)

    def lock(self) -> Any:
        """Return the lock under which the inner drafter runs."""
        return self._lock

    def ended(self) -> None:
        """Count a finished request, and request an update after a number of them."""
        self._worker.change_open(-1)
        with self._counting:
            self._requests += 1
            due = self._requests >= self._settings.every and self._settings.when != "manual"
            if due:
                self._requests = 0
        if due:
            self._worker.ask()

    def update(self) -> Update | None:
        """Run an update now and wait for it; None if there is too little to learn from."""
        return self._worker.run()

    def close(self) -> None:
        """End the thread; learned weights stay, and drafting continues without further updates."""
        self._finish()

    def save(self, path: Path) -> None:
        """Write the drafting weights and the windows."""
        with self._lock:
            arrays = {f"{_WEIGHTS}{name}": _to_array(weight) for name, weight in self._learner.live.named_parameters()}
        windows, facts = self._buffer.arrays()
        arrays |= {f"{_WINDOWS}{name}": array for name, array in windows.items()}
        with self._counting:
            facts["requests"] = self._requests
        write_memory(path, kind=KIND, tokenizer=self._tokenizer, arrays=arrays, facts=facts)

    def load(self, path: Path) -> None:
        """Replace the weights and the windows by those in a file.

        Raises:
            ForeignMemoryError: the weights belong to another model or head.
        """
        arrays, facts = read_memory(path, kind=KIND, tokenizer=self._tokenizer)
        weights = {name.removeprefix(_WEIGHTS): each for name, each in arrays.items() if name.startswith(_WEIGHTS)}
        windows = {name.removeprefix(_WINDOWS): each for name, each in arrays.items() if name.startswith(_WINDOWS)}
        self._check(path, weights, windows)
        with self._lock, torch.no_grad():
            for name, live in self._learner.live.named_parameters():
                if weights:
                    live.copy_(from_16_bits(weights[name]))
        self._worker.start_anew()
        self._buffer.restore(windows, facts)
        with self._counting:
            self._requests = int(facts["requests"])

    def _check(self, path: Path, weights: dict[str, Array], windows: dict[str, Array]) -> None:
        """Refuse weights with other names or shapes, and windows with other layers or sizes."""
        own = {name: tuple(weight.shape) for name, weight in self._learner.live.named_parameters()}
        found = {name: tuple(array.shape) for name, array in weights.items()}
        wrong = sorted(name for name in own.keys() | found.keys() if own.get(name) != found.get(name))
        if weights and wrong:
            there, here = (shapes.get(wrong[0], "missing") for shapes in (found, own))
            raise ForeignMemoryError(
                f"{path} was learned by another model or head: {wrong[0]} is {there} there and {here} here. "
                "Name the drafter that it was made with, or another file."
            )
        if len(windows.get("lengths", ())) and ("hidden" in windows) != self._states:
            raise ForeignMemoryError(f"{path} holds what another kind of drafter learned from. Name another file.")


class OnlineSession(WrappedSession):
    """One request."""

    def __init__(self, drafter: OnlineDrafter, inner: Session, recorder: RejectionRecorder) -> None:
        super().__init__(inner)
        self._drafter, self._recorder, self._open = drafter, recorder, True
        self._layers = len(drafter.inner.needs.hidden_layers)

    def propose(self, budget: Budget) -> DraftTree:
        with self._drafter.lock():
            return self.inner.propose(budget)

    def propose_after(self, tokens: Sequence[int], budget: Budget) -> DraftTree:
        with self._drafter.lock():
            return self.inner.propose_after(tokens, budget)

    def observe(self, verified: Verified) -> None:
        """Forward the round to the inner session, and record it."""
        own = replace(verified, hidden=verified.hidden[:, : self._layers] if self._layers else None)
        with self._drafter.lock():
            self.inner.observe(own)
        self._recorder.observe(verified)

    def follow(self, tokens: Int32) -> None:
        """Forward and record the tokens of a pause, one by one."""
        Session.follow(self, tokens)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            with self._drafter.lock():
                self.inner.close()
            self._recorder.close()
        finally:
            self._drafter.ended()


def _to_array(weight: torch.Tensor) -> Array:
    """Return weights in a memory file's form: Float32, or 16-bit floats."""
    if weight.dtype in (torch.float32, torch.float16):
        return weight.detach().cpu().clone().numpy()
    return weight.detach().to(torch.bfloat16).cpu().view(torch.int16).numpy().view(np.uint16)
