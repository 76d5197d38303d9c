"""Compatibility of a target and a draft model: their vocabularies, and what must be translated between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from speculant.core.errors import TokenizerError, UnsupportedError
from speculant.drafters.models.token_bytes import TokenBytes
from speculant.drafters.models.translation import Translation
from speculant.drafters.models.vocabulary import same_ids, share_vocabulary
from speculant.memory.fingerprint import tokenizer_fingerprint

MIN_SHARE = 0.1  # minimum share of the target's tokens: with fewer, the draft model can propose too little to be useful
Relation = Literal["same", "padded", "different", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """Relation between two vocabularies.

    Attributes:
        relation: "same", "padded" (the same ids, but another number of logits, or tokens that only one has),
            "different", or "unknown" if a tokenizer is missing and the sizes are compatible.
        translation: translation between the tokenizers, if both exist and can be compared.
        obstacle: reason why they cannot be compared; empty if they were.
    """

    relation: Relation
    translation: Translation | None = None
    obstacle: str = ""

    @property
    def shared(self) -> str:
        """Description of how many tokens are shared; empty if nothing was compared."""
        if self.translation is None:
            return ""
        shared = self.translation.shared
        return f"{len(shared)} of {shared.target_tokens} target tokens, {shared.share:.1%}"


def compare_pair(
    tokenizer: Any, draft_tokenizer: Any, *, vocabulary: int, draft_vocabulary: int, always: bool = False
) -> Pair:
    """Return the relation between the vocabularies of a target and a draft model.

    Args:
        tokenizer, draft_tokenizer: tokenizers of transformers, or None.
        vocabulary, draft_vocabulary: numbers of logits.
        always: whether to build a translation for equal vocabularies too.
    """
    if tokenizer is None or draft_tokenizer is None:
        # Models of one family pad their vocabularies differently.
        close = abs(draft_vocabulary - vocabulary) <= max(128, vocabulary // 100)
        missing = "draft model" if tokenizer is not None else "target" if draft_tokenizer is not None else "two models"
        return Pair(relation="unknown" if close else "different", obstacle=f"no tokenizer of the {missing} was given")
    alike = same_ids(tokenizer.get_vocab(), draft_tokenizer.get_vocab(), draft_size=draft_vocabulary)
    relation: Relation = "different"
    if alike:
        equal = tokenizer_fingerprint(tokenizer, 0) == tokenizer_fingerprint(draft_tokenizer, 0)
        relation = "same" if equal and vocabulary == draft_vocabulary else "padded"
    if alike and not always:
        return Pair(relation=relation)
    try:
        target, draft = TokenBytes(tokenizer), TokenBytes(draft_tokenizer)
    except TokenizerError as error:
        return Pair(relation=relation, obstacle=str(error))
    shared = share_vocabulary(target, draft, target_size=vocabulary, draft_size=draft_vocabulary)
    return Pair(relation=relation, translation=Translation(target, draft, shared, draft_size=draft_vocabulary))


def check_pair(pair: Pair, *, vocabulary: int, draft_vocabulary: int, text: bool = False, every: bool = False) -> str:
    """Return a note for the user about a pair, or "" if there is nothing to say.

    Args:
        pair: relation between the target's and the draft model's vocabulary.
        vocabulary, draft_vocabulary: numbers of logits.
        text: whether the method drafts through text.
        every: whether the method needs the draft model's probability of every token of the target.

    Raises:
        UnsupportedError: the method cannot use the pair; the message gives the reason and the way out.
        TokenizerError: a tokenizer is missing, or the tokenizers cannot be compared.
    """
    sizes = f"the draft model has {draft_vocabulary} tokens and the target {vocabulary}"
    if text:
        if pair.translation is None:
            raise TokenizerError(f"drafting through text needs both tokenizers, but {pair.obstacle}. {WAY_OUT}")
        return f"drafts go through text: the tokenizers share {pair.shared}."
    if pair.relation in ("same", "padded"):
        return ""
    if pair.relation == "unknown":
        return f"the tokenizers of target and draft model were not compared, since {pair.obstacle}."
    if every:
        raise UnsupportedError(
            "this method compares the two models' probabilities of every token, so they need the same vocabulary. "
            "Use a smaller model of the target's family, or the method 'draft-model'."
        )
    if pair.translation is None:
        raise TokenizerError(
            f"{sizes}: their tokens differ, and they cannot be translated, since {pair.obstacle.rstrip('.')}. {WAY_OUT}"
        )
    if pair.translation.shared.share < MIN_SHARE:
        raise UnsupportedError(
            f"the tokenizers of target and draft model share only {pair.shared}. Use the method 'uag', which drafts "
            "through text, or a smaller model of the target's family."
        )
    return f"the draft model has another tokenizer: it drafts the tokens that both have, {pair.shared}."


WAY_OUT = (
    "Pass tokenizer= and draft_tokenizer=, name folders that have tokenizer files, or use a smaller model of the "
    "target's family."
)
