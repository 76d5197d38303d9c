"""Translation of the target's text into a draft model's tokens: the prompt as a whole, committed tokens one by one."""

from __future__ import annotations

import numpy as np

from speculant.core.tree import Int32
from speculant.drafters.models.token_bytes import TokenBytes
from speculant.drafters.models.vocabulary import SharedVocabulary


class Translation:
    """Translates tokens of the target into tokens of a draft model with another tokenizer."""

    def __init__(self, target: TokenBytes, draft: TokenBytes, shared: SharedVocabulary, *, draft_size: int) -> None:
        """Create a translation.

        Args:
            target, draft: the tokenizers.
            shared: their shared vocabulary.
            draft_size: number of token ids that the draft model knows.
        """
        self.target, self.draft, self.shared = target, draft, shared
        self._to_draft, self._draft_size = shared.to_draft(), draft_size
        self._pieces = dict[int, tuple[int, ...]]()

    def pieces(self, token: int) -> tuple[int, ...]:
        """Return the draft model's tokens for a token of the target: its partner, or its text, which may be empty."""
        if token not in self._pieces:
            partner = self._to_draft.get(token)
            found = [piece for piece, _ in self.draft.resume(self.target.read(token))] if partner is None else [partner]
            self._pieces[token] = self._drop_unknown(found)
        return self._pieces[token]

    def prompt(self, tokens: Int32) -> Int32:
        """Return a prompt in the draft model's tokens, at least one.

        Text between special tokens is re-encoded as a whole. Special tokens are replaced by their partners, or left out
        if they have none. What the draft model's tokenizer adds before a text always comes first.
        """
        found, run, begun = list[int](), b"", False
        for token in [*tokens.tolist(), None]:
            text = b"" if token is None else self.target.read(token)
            run += text
            if text:
                continue
            if run:
                found += self._run(run, first=not begun)
                run, begun = b"", True
            partner = None if token is None else self._to_draft.get(token)
            if partner is not None:
                found.append(partner)
        prefix = self.draft.prefix
        if found[: len(prefix)] != prefix:
            found = [*prefix, *found]
        fallback = self.draft.bos if self.draft.bos is not None else self.draft.eos
        return np.array(self._drop_unknown(found) or (fallback or 0,), np.int32)

    def _run(self, text: bytes, *, first: bool) -> list[int]:
        if not first:
            return [piece for piece, _ in self.draft.resume(text)]
        if self.target.leads_with_space and text.startswith(b" "):
            text = text[1:]  # the target's tokenizer added it; the draft model's adds its own if needed
        return self.draft.begin(text)

    def _drop_unknown(self, tokens: list[int]) -> tuple[int, ...]:
        return tuple(token for token in tokens if token < self._draft_size)
