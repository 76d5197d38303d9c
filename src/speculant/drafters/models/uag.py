"""Drafting through text by a draft model with any tokenizer: `uag`.

Universal assisted generation; string-level exact match (SLEM) in Timor et al. 2025, arXiv 2502.05202, algorithm 3. The
draft model continues the text greedily in its own tokens; the target's tokenizer encodes the new text together with the
target's last tokens (the look-back window), and the tokens after the window are drafted as a deterministic chain.

Differences from transformers' implementation: texts are aligned by bytes instead of the longest diagonal of equal token
ids, so a repeated phrase cannot shift the draft; and the draft's rows before the window are kept instead of read again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs, TargetCache
from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, DraftTree
from speculant.drafters.models.draft_text import OpenCache
from speculant.drafters.models.shapes import MAX_PASSES
from speculant.drafters.models.translation import Translation


@dataclass(frozen=True, slots=True, kw_only=True)
class UniversalSettings:
    """Settings of `uag`.

    Attributes:
        length: maximum passes of the draft model per round.
        lookback: tokens of either model at the end of the text that are re-encoded with what follows.
    """

    length: int = 20
    lookback: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.length <= MAX_PASSES:
            raise UsageError(f"length must be from 1 to {MAX_PASSES}, not {self.length}.")
        if self.lookback < 1:
            raise UsageError(f"lookback must be at least 1, not {self.lookback}.")


class UniversalDrafter(Drafter):
    """Drafter that drafts through text: `uag`."""

    def __init__(
        self,
        open_cache: OpenCache,
        *,
        translation: Translation,
        settings: UniversalSettings | None = None,
    ) -> None:
        """Set up the draft model.

        Args:
            open_cache: returns an unread cache of the draft model for a prompt in its own tokens.
            translation: translation between the two tokenizers.
            settings: None for the defaults.
        """
        self._open_cache, self._translation = open_cache, translation
        self._settings = settings or UniversalSettings()

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        cache = self._open_cache(self._translation.prompt(start.prompt))
        return UniversalSession(cache, start, self._translation, self._settings)


class UniversalSession(Session):
    """Session of one request: the text since the prompt, and the draft model's cache of its beginning."""

    def __init__(
        self, cache: TargetCache, start: SessionRequest, translation: Translation, settings: UniversalSettings
    ) -> None:
        self._cache, self._translation, self._settings = cache, translation, settings
        self._tokens = start.prompt.tolist()[-settings.lookback :]  # the target's last tokens
        self._text = b""  # text after the committed rows of the draft model's cache
        self._rows = list[int]()  # the draft model's tokens in uncommitted rows, a chain
        self._full = False
        self._last: tuple[Budget, DraftTree] | None = None  # this round's budget and draft
        self._to_target = translation.shared.to_target()

    def propose(self, budget: Budget) -> DraftTree:
        """Return a chain. Repeated calls before `observe` return the same draft."""
        if self._last is None or self._last[0] != budget:
            self._last = budget, self._draft(min(budget.nodes, budget.depth))
        return self._last[1]

    def unread(self) -> int:
        return self._cache.unread

    def _draft(self, depth: int) -> DraftTree:
        logits = self._read_text() if depth > 0 else None
        if logits is None:
            return DraftTree.empty()
        text, ends, weights, tokens, end = b"", list[int](), list[float](), list[int](), None
        window = self._window()
        passes = min(self._settings.length, self._cache.depth + 2 - len(self._rows))
        for drawn in range(1, passes + 1):
            best = logits[-1].float().softmax(-1).max(-1)
            token = int(best.indices)
            weights.append(float(best.values) * (weights[-1] if weights else 1.0))
            piece = self._translation.draft.read(token)
            if not piece:  # a special token ends the draft, and is part of it if the target also has it
                end = self._to_target.get(token)
                break
            text += piece
            ends.append(len(text))
            tokens = [each for each, _ in self._encode_draft(window, text)]
            # The last token may still grow, so a draft is long enough only if it has one more.
            if len(tokens) > depth or drawn == passes:
                break
            logits = self._append([token])
        found = self._encode_draft(window, text)[:depth]
        return self._chain(found, ends, weights, end if len(tokens) < depth else None)

    def _chain(self, found: list[tuple[int, int]], ends: list[int], weights: list[float], end: int | None) -> DraftTree:
        """Return a chain of the target's tokens, each as probable as the draft model's text up to its end."""
        tokens = [token for token, _ in found]
        joint = [next(w for e, w in zip(ends, weights, strict=False) if e >= place) for _, place in found]
        if end is not None:
            tokens, joint = [*tokens, end], [*joint, weights[-1]]
        parents = np.arange(ROOT, len(tokens) - 1, dtype=np.int32)
        return DraftTree(np.array(tokens, np.int32), parents, np.array(joint, np.float32))

    def _encode_draft(self, window: bytes, text: bytes) -> list[tuple[int, int]]:
        """Return the target's tokens for drafted text, each with the number of bytes up to its end.

        They are the tokens after the window if it ends at a token boundary; otherwise the draft is encoded on its own.
        """
        text = _complete(text)
        found = self._translation.target.resume(window + text)
        if window and any(end == len(window) for _, end in found):
            return [(token, end - len(window)) for token, end in found if end > len(window)]
        return self._translation.target.resume(text)

    def _window(self) -> bytes:
        """Return the text of the target's last tokens, starting at a character boundary."""
        return self._translation.target.join(self._tokens).lstrip(bytes(range(0x80, 0xC0)))

    def _read_text(self) -> Tensor | None:
        """Return the draft model's logits after the text; None if there is nothing to continue from.

        Settled rows, those of whole words before the window, are committed. The others are read again with the text
        that follows, unless the last draft already contains them.
        """
        if self._full:
            return None
        if self._cache.unread:
            self._cache.prefill()
        pieces = self._translation.draft.resume(self._text)
        found = [token for token, _ in pieces]
        if not found or _complete(self._text) != self._text:
            return None
        same = 0
        while same < min(len(found), len(self._rows)) and found[same] == self._rows[same]:
            same += 1
        settled = self._count_settled(found, same)
        if settled or same < len(self._rows) or same == len(found):
            self._cache.keep(range(settled))
            self._text = self._text[pieces[settled - 1][1] if settled else 0 :]
            self._rows, found, same = [], found[settled:], 0
        if len(found) > self._cache.depth + 1:
            self._full = True
            return None
        return self._append(found[same:])

    def _count_settled(self, found: list[int], same: int) -> int:
        """Return how many tokens of the text may be committed: their rows exist, and words stay whole."""
        lookback = self._settings.lookback
        maximum = min(same, len(found) - lookback)
        for place in range(maximum, 0, -1):
            if self._translation.draft.read(found[place])[:1].isspace():
                return place
        return max(0, maximum) if len(found) > 5 * lookback else 0  # text without spaces

    def _append(self, tokens: list[int]) -> Tensor:
        """Run the draft model over tokens that follow the rows so far; return the logits after them."""
        first = len(self._rows) - 1
        parents = np.arange(first, first + len(tokens), dtype=np.int32)
        logits = self._cache.forward(np.array(tokens, np.int32), parents).logits
        self._rows += tokens
        return torch.as_tensor(logits)

    def observe(self, verified: Verified) -> None:
        """Append the committed tokens; they are read with the next draft."""
        committed = verified.tokens.tolist()
        self._text += self._translation.target.join(committed)
        self._tokens = [*self._tokens, *committed][-self._settings.lookback :]
        self._last = None

    def close(self) -> None:
        self._cache.release()


def _complete(text: bytes) -> bytes:
    """Return text without an incomplete character at its end; unchanged if it is not UTF-8 otherwise."""
    for cut in range(min(4, len(text) + 1)):
        try:
            text[: len(text) - cut].decode()
        except UnicodeDecodeError:
            continue
        return text[: len(text) - cut]
    return text
