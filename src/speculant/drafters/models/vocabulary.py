"""The tokens that two vocabularies share: token-level intersection (TLI).

Timor et al.: "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies",
ICML 2025, arXiv 2502.05202, algorithm 4: the drafter's distribution is restricted to the shared tokens and normalised,
and verification works as usual, so the output stays the target's. In the paper, tokens are shared if their names are
equal after the space mark is replaced; here, if they represent the same bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speculant.core.tree import Int64
from speculant.drafters.models.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True, eq=False)
class SharedVocabulary:
    """Pairs of tokens; each token is in at most one pair.

    Attributes:
        target_ids: Int64[S], tokens of the target's vocabulary.
        draft_ids: Int64[S], the draft model's token for each.
        target_size: V, number of logits of the target.
        target_tokens: number of tokens in the target's tokenizer.
    """

    target_ids: Int64
    draft_ids: Int64
    target_size: int
    target_tokens: int

    def __len__(self) -> int:
        return len(self.target_ids)

    @property
    def share(self) -> float:
        """Share of the target's tokens that the draft model also has."""
        return len(self) / max(1, self.target_tokens)

    def to_draft(self) -> dict[int, int]:
        """Return the draft model's token for each shared token of the target."""
        return dict(zip(self.target_ids.tolist(), self.draft_ids.tolist(), strict=True))

    def to_target(self) -> dict[int, int]:
        """Return the target's token for each shared token of the draft model."""
        return dict(zip(self.draft_ids.tolist(), self.target_ids.tolist(), strict=True))

    def restrict(self, logits: Tensor) -> Tensor:
        """Map the draft model's logits [R, V'] to the target's tokens [R, V], with -inf for tokens not shared."""
        target = torch.as_tensor(self.target_ids, device=logits.device)
        draft = torch.as_tensor(self.draft_ids, device=logits.device)
        over = logits.new_full((len(logits), self.target_size), -torch.inf)
        return over.index_copy_(1, target, logits.index_select(1, draft))


def share_vocabulary(target: TokenBytes, draft: TokenBytes, *, target_size: int, draft_size: int) -> SharedVocabulary:
    """Return the tokens that represent the same bytes in both vocabularies.

    If several tokens of a vocabulary do, such as "A" and the byte <0x41>, those with the same name are paired first,
    then the others in order. Special tokens are paired by name, then the end and beginning of text.

    Args:
        target, draft: the tokenizers.
        target_size, draft_size: numbers of logits; tokens beyond them are left out.
    """
    ours, theirs = _texts(target, target_size), _texts(draft, draft_size)
    pairs = dict[int, int]()
    for text, ids in ours.items():
        pairs |= _pair(target, draft, ids, theirs.get(text, []))
    # A name may be special in one tokenizer and an ordinary added token in the other, such as <think>.
    names = dict.fromkeys([*target.specials, *draft.specials])
    special = [(target.names.get(name), draft.names.get(name)) for name in names]
    taken = set(pairs.values())
    for mine, other in [*special, (target.eos, draft.eos), (target.bos, draft.bos)]:
        if mine is None or other is None or mine >= target_size or other >= draft_size:
            continue
        if mine not in pairs and other not in taken:
            pairs[mine] = other
            taken.add(other)
    order = sorted(pairs)
    return SharedVocabulary(
        np.array(order, np.int64), np.array([pairs[i] for i in order], np.int64), target_size, len(target.names)
    )


def same_ids(target: Mapping[str, int], draft: Mapping[str, int], *, draft_size: int) -> bool:
    """Return whether ids mean the same in both vocabularies, except those only one has, so no translation is needed.

    Every token of the target must be an id that the draft model can read.

    Args:
        target, draft: id of each token by name, as returned by the tokenizers.
        draft_size: number of ids that the draft model knows.
    """
    if max(target.values(), default=-1) >= draft_size:
        return False
    theirs = {i: name for name, i in draft.items()}
    return all(theirs.get(i, name) == name for name, i in target.items())


def _texts(tokens: TokenBytes, size: int) -> dict[bytes, list[int]]:
    found = defaultdict[bytes, list[int]](list)
    for i, text in enumerate(tokens.texts[:size]):
        if text:
            found[text].append(i)
    return found


def _pair(target: TokenBytes, draft: TokenBytes, ours: list[int], theirs: list[int]) -> dict[int, int]:
    """Return pairs of tokens that represent the same bytes."""
    if len(ours) == len(theirs) == 1:
        return {ours[0]: theirs[0]}
    pairs = {i: other for i in ours for other in theirs if target.name(i) == draft.name(other)}
    spare = [other for other in theirs if other not in pairs.values()]
    return pairs | dict(zip([i for i in ours if i not in pairs], spare, strict=False))
