"""transformers' own decoding as systems of a benchmark: plain, prompt lookup and assisted generation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speculant.bench.suite.tasks import TaskRequest, TaskSampling
from speculant.bench.systems.forced import ForcingProcessor
from speculant.bench.systems.hf_names import ASSISTED, OPTIONS, check_hf
from speculant.bench.systems.system import RequestOutcome
from speculant.core.errors import UnsupportedError
from speculant.engines.hf.sampling.generate_capture import sampling_options
from speculant.engines.hf.sampling.own_config import leave_out_modes


class HuggingFace:
    """`model.generate` with the options of its name."""

    has_memory = False
    notes = ()

    def __init__(self, name: str, model: Any, draft_model: Any = None) -> None:
        """Check and keep the options.

        Args:
            name: a name in `OPTIONS`.
            model: the target.
            draft_model: draft model of hf:assisted.

        Raises:
            UsageError, UnsupportedError: see `check_hf`; or transformers refuses the model.
        """
        check_hf(name, draft_model=draft_model is not None)
        if name != "hf:generate" and getattr(model, "_is_stateful", False):
            raise UnsupportedError(
                f"{name} cannot run {type(model).__name__}: transformers verifies no drafts on models with recurrent "
                "states. Leave it out, or name hf:generate."
            )
        if model.generation_config.stop_strings:
            raise UnsupportedError(
                f"{name} has no tokenizer to find the stop strings of the model's generation config. Remove them from "
                "generation_config.json, or leave the method out."
            )
        self.name = name
        self._model = model
        self._options = dict(OPTIONS[name])
        if name == ASSISTED:
            self._options["assistant_model"] = draft_model

    def token_identical(self, sampling: TaskSampling) -> bool:
        return sampling.temperature == 0 or self.name == "hf:generate"

    def warm_up(self) -> None:
        """Do nothing: there is nothing to compile."""

    def reset(self) -> None:
        """Do nothing: there is no memory."""

    def save(self, path: Path) -> None:
        """Do nothing: there is no memory."""

    def load(self, path: Path) -> None:
        """Do nothing: there is no memory."""

    def run(self, request: TaskRequest, sampling: TaskSampling) -> RequestOutcome:
        model = self._model
        ids = torch.from_numpy(request.prompt.astype(np.int64))[None].to(model.device)
        recorder = _PassRecorder()
        modes = leave_out_modes(model.generation_config, given=self._options)
        options = modes | self._options | sampling_options(sampling.temperature, None, None)
        ending: Sequence[int] = eos_ids(model)
        if request.forced is not None:
            options["logits_processor"] = [ForcingProcessor(ids.shape[1], request.forced.tolist())]
            # `generate` uses the model's own end of text if None is given; no token has this id.
            options["eos_token_id"] = -1
            ending = ()
        with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
            torch.manual_seed(sampling.seed)
            recorder.start()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.max_new_tokens,
                streamer=recorder,
                **options,
            )
            seconds = recorder.measure_elapsed()
        return recorder.outcome(seconds, request.max_new_tokens, ending)


class _PassRecorder:
    """A streamer that records the tokens of each pass."""

    def __init__(self) -> None:
        self._passes: list[list[int]] = []
        self._started = self._first = 0.0
        self._prompt = True

    def start(self) -> None:
        self._started = time.perf_counter()

    def measure_elapsed(self) -> float:
        return time.perf_counter() - self._started

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:  # which `generate` streams first
            self._prompt = False
            return
        if not self._passes:
            self._first = self.measure_elapsed()
        self._passes.append(value.reshape(-1).tolist())

    def end(self) -> None:
        pass

    def outcome(self, seconds: float, max_new_tokens: int, ending: Sequence[int]) -> RequestOutcome:
        ids: list[int] = []
        yields = []
        for tokens in self._passes:
            kept = _until(tokens, ending)[: max_new_tokens - len(ids)]
            ids += kept
            yields.append(len(kept))
        first, *rest = yields
        deepest = max(rest, default=1) - 1
        return RequestOutcome(
            ids=ids,
            seconds=seconds,
            prefill_seconds=self._first,
            prefill_tokens=first,
            rounds=len(rest),
            accepted_by_depth=[sum(each > depth for each in rest) for depth in range(1, deepest + 1)],
        )


def eos_ids(model: Any) -> list[int]:
    """Return the model's end-of-text ids."""
    found = model.generation_config.eos_token_id
    return [] if found is None else found if isinstance(found, list) else [found]


def _until(tokens: list[int], ending: Sequence[int]) -> list[int]:
    """Return the tokens up to the end of text."""
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in ending), tokens)
