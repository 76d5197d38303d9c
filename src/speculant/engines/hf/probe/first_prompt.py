"""A check before drafts are first verified after prompts with more than text: media, or an encoder's states.

No config states how a class handles positions and masks there, so the first prompt with certain inputs is read twice
more: by the model's own decoding, and by a sequence that verifies a small draft. Both must give the same logits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from dataclasses import replace

import numpy as np
import torch

from speculant.core.errors import OutOfMemoryError
from speculant.engines.hf.cache import cached_length, copy_prefix, holds_text, reusable_length
from speculant.engines.hf.caches.plain_cache import PlainTargetCache
from speculant.engines.hf.encoded import EncodedPrompt
from speculant.engines.hf.forward_pass import ModelRunner
from speculant.engines.hf.media import MediaPrompt
from speculant.engines.hf.probe.rounds import wrong_rows
from speculant.engines.hf.prompt import UnusualPromptError
from speculant.engines.hf.sampling.generate_capture import GenerateCall
from speculant.engines.hf.target_cache import HFTargetCache

_STEPS = 4  # tokens that plain decoding chooses after the prompt
_NO_PARENT = np.array([-1], np.int32)  # parent of a root

logger = logging.getLogger(__name__)


class FirstPromptCheck:
    """Knows after which inputs drafts can be verified on one model in its current state."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._known: dict[frozenset[str], str] = {}  # by the names of the inputs
        self._split: dict[frozenset[str], bool] = {}  # also by the names of the inputs

    def reason(self, call: GenerateCall) -> str:
        """Return why no drafts can be verified after a prompt with media or an encoder's states; "" if they can.

        Raises:
            OutOfMemoryError: the device is full.
        """
        capabilities = self._runner.capabilities
        if len(call.ids) > 1:
            return "several rows with media, or of an encoder-decoder, are decoded together"
        if call.padding is not None and not bool(call.padding.all()):
            return "drafts are not verified behind padding and media, or padding of a decoder"
        if call.cache is not None and holds_text(call.cache):
            return "drafts are not verified where media or a decoder go on from a cache"
        if capabilities.replays:
            return "drafts are not verified behind media where the cache can only be copied"
        if capabilities.rope_limit is not None:
            return "drafts are not verified behind media where rotary factors change with the length of the text"
        names = frozenset(call.others)
        if names not in self._known:
            self._known[names] = self._find_difference(call)
        return self._known[names]

    def open(self, call: GenerateCall) -> HFTargetCache:
        """Return a new sequence for a prompt with more than text, which reuses another's rows if that is correct.

        Raises:
            UnusualPromptError: drafts cannot follow it.
        """
        return open_prompt(self._runner, call, splits=lambda end: self._splits(call, end))

    def _splits(self, call: GenerateCall, end: int) -> bool:
        """Return whether a prompt gets the same logits when it reuses another's rows up to the end of the media.

        The other prompt has a different last token, which the reused rows must not have read.

        Raises:
            OutOfMemoryError: the device is full.
        """
        names = frozenset(call.others)
        if names not in self._split:
            self._split[names] = self._can_split(call, end)
        return self._split[names]

    def _can_split(self, call: GenerateCall, end: int) -> bool:
        other, runner = copy(call), self._runner
        other.ids = call.ids.clone()
        other.ids[0, -1] = call.ids[0, -2] if call.ids[0, -2] != call.ids[0, -1] else call.ids[0, 0]
        try:
            kept, whole, parted = open_prompt(runner, other), open_prompt(runner, call), open_prompt(runner, call)
            kept.prefill()
            prefix = copy_prefix(kept.cache, end, room=call.ids.shape[1])
            if cached_length(prefix) != end or reusable_length(prefix, end) != end:
                return False
            parted.begin_with(prefix)
            expected, found = whole.prefill(), parted.prefill()
        except OutOfMemoryError:
            raise
        except Exception:  # a model may raise anything for an unexpected part
            logger.info("prompts with media do not go on from %s rows", end, exc_info=True)
            return False
        assert expected is not None
        assert found is not None
        return not wrong_rows(found.logits, expected.logits, runner.model.dtype).numel()

    def _find_difference(self, call: GenerateCall) -> str:
        """Return what is wrong with drafts after a prompt; if no text was probed, chains may still be correct."""
        found, capabilities = self._difference(call), self._runner.capabilities
        if not found or not capabilities.trees or (capabilities.text_alone and not capabilities.encoder):
            return found
        note = f"trees would change the logits of this class ({found}): drafts are verified as chains."
        chains = replace(capabilities, trees=False, placing=(), notes=(*capabilities.notes, note))
        self._runner.capabilities = chains
        if found := self._difference(call):
            self._runner.capabilities = capabilities
        return found

    def _difference(self, call: GenerateCall) -> str:
        try:
            ours, plain = open_prompt(self._runner, call), PlainTargetCache(call, [])
            first = plain.prefill().logits
            tokens, expected = [int(first[-1].argmax())], []
            for _ in range(_STEPS):
                expected.append(plain.forward(np.array(tokens[-1:], np.int32), _NO_PARENT).logits[-1])
                plain.keep([0])
                tokens.append(int(expected[-1].argmax()))
            ours.prefill()
            found = [*self._verify_draft(ours, tokens)]
        except OutOfMemoryError:
            raise
        except UnusualPromptError as error:
            return str(error)
        except Exception as error:  # a model may raise anything for unexpected masks and positions
            logger.info(
                "a probe of %s behind its first prompt failed", type(self._runner.model).__name__, exc_info=True
            )
            return f"passes over drafts behind such prompts fail with {type(error).__name__}: {str(error).strip():.200}"
        if wrong_rows(torch.stack(found), torch.stack(expected), self._runner.model.dtype).numel():
            return "drafts behind such prompts would change this model's logits"
        return ""

    def _verify_draft(self, ours: HFTargetCache, tokens: list[int]) -> list[torch.Tensor]:
        """Return the logits [V] after each token but the last, by a drafted pass and one after its kept rows."""
        right, last = tokens[: _STEPS - 1], tokens[_STEPS - 1]
        if ours.trees:  # a wrong node lies between the correct ones
            drafted = [right[0], right[1] + 1 if right[1] == 0 else right[1] - 1, *right[1:]]
            rows, parents = [0, 2, 3], [-1, 0, 0, 2]
        else:
            drafted, rows, parents = right, [0, 1, 2], [-1, 0, 1]
        logits = ours.forward(np.array(drafted, np.int32), np.array(parents, np.int32)).logits
        found = [logits[row] for row in rows]
        ours.keep(rows)
        return [*found, ours.forward(np.array([last], np.int32), _NO_PARENT).logits[0]]


def open_prompt(
    runner: ModelRunner, call: GenerateCall, *, splits: Callable[[int], bool] = lambda _: False
) -> HFTargetCache:
    """Return a new sequence whose prompt has more than text.

    Args:
        runner: runner of the model.
        call: a call prepared by `generate`.
        splits: see `MediaPrompt`.

    Raises:
        UnusualPromptError: drafts cannot follow it.
    """
    prompt = EncodedPrompt(call) if runner.capabilities.encoder else MediaPrompt(call, splits=splits)
    return HFTargetCache(runner, call.ids, prompt=prompt)
