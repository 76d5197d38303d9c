"""The state of one request in its grammar: a logits processor, and a filter of its drafts.

The sampler processes each row of the accepted path once, in order, on the committed text, so one matcher that advances
by committed tokens masks every row by the grammar's state after that row's own path. Masks that were computed to filter
the draft are reused there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from speculant.core.draft_filter import DraftFilter
from speculant.core.errors import UsageError
from speculant.core.tree import ROOT, Bool, DraftTree

Mask = npt.NDArray[np.uint8]


class GrammarState(DraftFilter):
    """Masks the tokens that cannot follow; the end-of-text token is allowed where the grammar is complete."""

    def __init__(self, matcher: Any, *, prompt: int, ends: frozenset[int]) -> None:
        """Begin at the grammar's start.

        Args:
            matcher: an `llguidance.LLMatcher` for this request alone.
            prompt: the length of the prompt, which the grammar does not see.
            ends: the tokens that end a text.
        """
        self._matcher, self._prompt, self._ends = matcher, prompt, ends
        self._read = 0  # generated tokens that the matcher has consumed
        self._masks: dict[tuple[int, ...], Mask] = {}  # by path after the consumed tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores [1, V] after a text [1, T], prompt included, -inf where a token cannot follow.

        Raises:
            UsageError: the text violates the grammar, or matching it exceeds a limit.
        """
        path = tuple(input_ids[0, self._prompt + self._read :].tolist())
        mask = self._masks.get(path)
        if mask is None:
            self._advance(path)
            mask = self._mask(())
        forbidden = torch.from_numpy(mask[: scores.shape[-1]] == 0).to(scores.device)
        return scores.masked_fill(forbidden, -torch.inf)

    def allowed(self, tree: DraftTree, tokens: Sequence[int]) -> Bool:
        found = np.zeros(len(tree), bool)
        if not len(tree):
            return found
        self._advance(tokens[self._read :])
        below: dict[int, list[int]] = {}
        for child, parent in enumerate(tree.parents.tolist()):
            below.setdefault(parent, []).append(child)
        path: tuple[int, ...] = ()  # the path the matcher is advanced along, then rolled back
        levels = [(iter(below[ROOT]), self._mask(path))]
        while levels:
            siblings, mask = levels[-1]
            node = next(siblings, None)
            if node is None:
                levels.pop()
                if levels:
                    self._matcher.rollback(1)
                    path = path[:-1]
            elif mask[tree.tokens[node]]:
                found[node] = True
                token = int(tree.tokens[node])
                if node in below and token not in self._ends:
                    self._matcher.consume_token(token)
                    path = (*path, token)
                    levels.append((iter(below[node]), self._mask(path)))
        self._check()
        return found

    def find_forced(self, tokens: Sequence[int], maximum: int) -> list[int]:
        self._advance(tokens[self._read :])
        path: list[int] = []
        while len(path) < maximum:
            allowed = np.flatnonzero(self._mask(tuple(path)))
            if len(allowed) != 1 or int(allowed[0]) in self._ends:
                break
            path.append(int(allowed[0]))
            self._matcher.consume_token(path[-1])
        if path:
            self._matcher.rollback(len(path))
        self._check()
        return path

    def complete(self, tokens: Sequence[int]) -> bool:
        try:
            self._advance(tokens[self._read :])
        except UsageError:  # a limit exceeded by the last tokens, after which no mask was needed
            return False
        return bool(self._matcher.is_accepting())

    def _mask(self, path: tuple[int, ...]) -> Mask:
        """Return UInt8[>= V], 1 at tokens that can follow; for forced bytes, only the tokens of their usual split.

        Args:
            path: the path the matcher was advanced along, beyond the consumed tokens.
        """
        found = self._masks.get(path)
        if found is None:
            packed = self._matcher.compute_bitmask()
            self._check()
            found = self._masks[path] = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
        return found

    def _advance(self, tokens: Sequence[int]) -> None:
        if len(tokens):
            self._masks.clear()
            self._matcher.consume_tokens(list(tokens))
            self._read += len(tokens)
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(
                f"the constraint cannot be followed any further: {first_line(self._matcher.get_error())} Simplify it, "
                "and leave out options that rule tokens out, such as min_new_tokens."
            )


def first_line(message: str) -> str:
    """Return the first line of an error, plus the regular expression parser's reason, which comes further down.

    The rest repeats the text and the parser's state.
    """
    first, *others = message.strip().split("\n")
    reason = next((line.removeprefix("error: ") for line in others if line.startswith("error: ")), "")
    line = f"{first[:300].rstrip('.')} {reason}".rstrip()
    return f"{line}."
