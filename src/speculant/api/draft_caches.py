"""Draft models: the default one, and the function that opens caches for drafters, in either model's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speculant.api.engines import find_engine
from speculant.api.loading import bundled_draft_model, find_draft_model, is_bundled, load_model
from speculant.api.options import check_model_object
from speculant.core.drafter import EncoderSource
from speculant.core.engine import TargetCache
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import Int32
from speculant.drafters.models.pairs import Pair, check_pair, compare_pair
from speculant.drafters.models.translated_cache import TranslatedCache
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.draft_encoder import DraftEncoder, has_encoder
from speculant.engines.hf.encoded import encoded_call
from speculant.engines.hf.engine import HFEngine
from speculant.registry import Method, find_rule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftCaches:
    """Opens caches of a loaded and prepared draft model; speculators of one target may share it.

    Attributes:
        engine: engine of the draft model.
        pair: its vocabulary and the target's.
        tokenizer, draft_tokenizer: tokenizers of the target and of the draft model, or None.
        text: whether prompts are in the draft model's own tokens, for methods that draft through text.
        encoder: the draft model's encoder, if both models have one; else None.
        notes: messages for the user about the pair.
    """

    engine: HFEngine
    pair: Pair
    tokenizer: Any = None
    draft_tokenizer: Any = None
    text: bool = False
    encoder: DraftEncoder | None = None
    notes: tuple[str, ...] = ()

    def __call__(self, prompt: Int32, source: EncoderSource | None = None) -> TargetCache:
        """Return a cache for a prompt Int32[T], which is not read yet.

        It takes the target's tokens, translating them if the draft model has others; with `text`, it takes the draft
        model's. A draft model with an encoder reads the source, and in place of the prompt its decoder's first tokens.

        Raises:
            UnsupportedError: drafts of this draft model cannot follow a source; the message gives the reason.
        """
        if self.encoder is not None and source is not None:
            return self._open_encoded(source, self.encoder)
        if self.text or self.pair.relation != "different" or self.pair.translation is None:
            return self._open(prompt)

        return TranslatedCache(prompt, translation=self.pair.translation, open_cache=self._open)

    def _open(self, prompt: Int32) -> TargetCache:
        """Return a cache; of a prompt that fills most of the model's positions, only the first token and the end."""
        return self.engine.open(self._ids(prompt, self.engine.capabilities.positions))

    def _open_encoded(self, source: EncoderSource, encoder: DraftEncoder) -> TargetCache:
        ids = self._ids(source.prompt, self.engine.capabilities.slots)
        call = encoded_call(self.engine.model, ids, encoder.states(source))
        if reason := self.engine.call_obstacle(call):
            raise UnsupportedError(f"this draft model cannot draft behind an encoder's states: {reason}.")
        return self.engine.open_call(call)

    def _ids(self, prompt: Int32, positions: int | None) -> torch.Tensor:
        """Return ids Int64[1, T'] of a prompt that a model with these positions can read with room for drafts."""
        known = self.engine.capabilities.vocabulary
        if prompt.size and int(prompt.max()) >= known:  # padding ids of the target's vocabulary, which no text has
            prompt = np.where(prompt < known, prompt, 0).astype(np.int32)
        if positions is not None and len(prompt) > (maximum := max(2, 3 * positions // 4)):
            prompt = np.concatenate([prompt[:1], prompt[len(prompt) - maximum + 1 :]])
        return torch.from_numpy(prompt).long()[None].to(self.engine.device)


def default_draft_model(target: Any) -> tuple[Any, Any]:
    """Return the bundled draft model, in the target's dtype and on its device, if the target is the bundled model.

    Returns:
        The model and its tokenizer; None and None for other targets, whose users name a draft model.
    """
    if not (source := getattr(target, "name_or_path", None)) or not is_bundled(source):
        return None, None
    dtype = str(target.dtype).removeprefix("torch.")
    return load_model(str(bundled_draft_model()), dtype=dtype, device=str(target.device))


def open_draft_caches(
    draft_model: Any,
    vocabulary: int,
    *,
    tokenizer: Any = None,
    draft_tokenizer: Any = None,
    target: Any = None,
    text: bool = False,
    every: bool = False,
) -> DraftCaches:
    """Return the opener of a draft model's caches; a named model is loaded with its tokenizer.

    Args:
        draft_model: a model, its name, or a result of this function for the same target, whose engine and tokenizers
            are reused.
        vocabulary: vocabulary size V of the target.
        tokenizer: the target's tokenizer, or None.
        draft_tokenizer: the draft model's tokenizer; None for the one loaded with it, if any.
        target: the target; needed only if the draft model is an encoder-decoder, for comparing their encoders.
        text: whether the method drafts through text.
        every: whether it needs the draft model's probability of every target token.

    Raises:
        UnsupportedError: the two share too few tokens.
        TokenizerError: they differ, and a tokenizer is missing.
    """
    engine = None
    if isinstance(draft_model, DraftCaches):
        engine, model = draft_model.engine, draft_model.engine.model
        tokenizer = draft_model.tokenizer if tokenizer is None else tokenizer
        draft_tokenizer = draft_model.draft_tokenizer if draft_tokenizer is None else draft_tokenizer
    elif isinstance(draft_model, str | Path):
        model, found = load_model(find_draft_model(str(draft_model)))
        draft_tokenizer = found if draft_tokenizer is None else draft_tokenizer
    else:
        model = draft_model
    check_model_object(model, draft_tokenizer)
    encoded = has_encoder(model.config, getattr(target, "config", None))
    own = model.config.get_text_config(decoder=True).vocab_size
    pair = compare_pair(tokenizer, draft_tokenizer, vocabulary=vocabulary, draft_vocabulary=own, always=text)
    note = check_pair(pair, vocabulary=vocabulary, draft_vocabulary=own, text=text, every=every)
    if encoded and (text or pair.relation == "different"):
        raise UnsupportedError(
            "a draft model that is an encoder-decoder needs the target's vocabulary, and a method that drafts tokens. "
            "Use a smaller model of the target's family, with the method 'draft-model'."
        )
    encoder = None
    if encoded:
        known = draft_model.encoder if isinstance(draft_model, DraftCaches) else None
        encoder = known or DraftEncoder(target, model)
    return DraftCaches(
        engine=HFEngine(model, acceleration=prepare_model(model, None)) if engine is None else engine,
        pair=pair,
        tokenizer=tokenizer,
        draft_tokenizer=draft_tokenizer,
        text=text,
        encoder=encoder,
        notes=(note,) if note else (),
    )


def drafts_of(method: Method, model: Any, tokenizer: Any, draft_model: Any, draft_tokenizer: Any) -> list[DraftCaches]:
    """Return the openers of a method's draft models: none, one, or several if it merges them.

    Args:
        method: a registered method; if it needs a draft model and none is given, the bundled model has its own.
        model, tokenizer: the target and its tokenizer, or None.
        draft_model: a model or its name, a list of them, a result of `open_draft_caches`, or None.
        draft_tokenizer: the draft model's tokenizer, a list for a list of models, or None.

    Raises:
        UsageError: the method takes a single draft model, or a tokenizer is given without a draft model.
        UnsupportedError, TokenizerError: see `open_draft_caches`.
    """
    if draft_tokenizer is not None and draft_model is None:
        raise UsageError("draft_tokenizer belongs to a draft model; pass draft_model= too, or leave it out.")
    if draft_model is None and method.takes_draft_model:
        draft_model, draft_tokenizer = default_draft_model(model)
        tokenizer = draft_tokenizer if tokenizer is None else tokenizer  # the bundled models share theirs
    several = isinstance(draft_model, list | tuple)
    if several:
        method.check_several()
    models = draft_model if several else [draft_model]
    own = draft_tokenizer if isinstance(draft_tokenizer, list | tuple) else [draft_tokenizer] * len(models)
    if len(own) != len(models):
        raise UsageError(f"there are {len(models)} draft models and {len(own)} draft tokenizers; pass one for each.")
    return [
        open_draft_caches(
            each,
            find_engine(model).vocabulary(model),
            tokenizer=tokenizer,
            draft_tokenizer=its,
            target=model,
            text=method.drafts_text,
            every=method.samples == "scored",
        )
        for each, its in zip(models, own, strict=True)
        if each is not None
    ]


def check_merged(verifier: str | None, *, lossy: bool) -> None:
    """Refuse acceptance rules that cannot verify the merged trees of several draft models, whose tokens are chosen.

    Raises:
        UnsupportedError: the rule does not accept chosen tokens.
    """
    if verifier is not None and "chosen" not in find_rule(verifier, lossy=lossy)[0].drafts:
        raise UnsupportedError(
            f"the trees of several draft models are merged and their tokens chosen, which the verifier '{verifier}' "
            "does not support. Use speculative-sampling, or one draft model."
        )
