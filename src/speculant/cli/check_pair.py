"""`speculant check --draft-model` without a method: whether a draft model fits a target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from speculant.cli.prompts import Prompt, encode_prompt
from speculant.core.errors import UnsupportedError
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions

TOKENS = 32  # tokens per continuation


def report_pair(
    loading: ModelOptions, drafting: DraftingOptions, prompts: Sequence[Prompt], *, tokens: int | None, as_json: bool
) -> int:
    """Load both models, compare, measure and print; return 1 if the pair cannot be used, else 0.

    Args:
        loading: loading options of the target.
        drafting: drafting options, with a single draft model.
        prompts: prompts on whose continuations acceptance is measured.
        tokens: number of tokens per continuation; None for 32.
        as_json: whether to print JSON.
    """
    from speculant.cli.env import environment
    from speculant.cli.loading import load, load_draft_model, model_title

    model, tokenizer, _ = load(loading, needed="the report reads the config of transformers")
    [name] = drafting.draft_model
    draft_model, draft_tokenizer = load_draft_model(name, drafting, loading)
    if getattr(draft_model.config, "is_encoder_decoder", False):
        raise UnsupportedError(
            "this report is for draft models without an encoder. Decode with it: --method draft-model reports whether "
            "it fits, and its acceptance."
        )
    import numpy as np

    from speculant.api.draft_caches import open_draft_caches
    from speculant.api.speculator import Speculator
    from speculant.bench.suite.pair_acceptance import measure_pair
    from speculant.bench.suite.pair_report import ModelFacts, PairReport, special_tokens
    from speculant.drafters.models.pairs import compare_pair

    target, draft = ModelFacts.of(model), ModelFacts.of(draft_model)
    pair = compare_pair(
        tokenizer, draft_tokenizer, vocabulary=target.vocabulary, draft_vocabulary=draft.vocabulary, always=True
    )
    specials = special_tokens(tokenizer, draft_tokenizer)
    report = PairReport(target=target, draft=draft, pair=pair, specials=specials)
    if tokenizer is not None and not report.obstacles["tokens"]:
        plain = Speculator.from_transformers(model, tokenizer, method="none", fast=False)
        drafts = open_draft_caches(draft_model, target.vocabulary, tokenizer=tokenizer, draft_tokenizer=draft_tokenizer)
        ids = [
            np.array(encode_prompt(plain, number, prompt), np.int32) for number, prompt in enumerate(prompts, start=1)
        ]
        acceptance = measure_pair(plain, drafts, ids, tokens=tokens or TOKENS)
        report = PairReport(target=target, draft=draft, pair=pair, specials=specials, acceptance=acceptance)
    if as_json:
        found: dict[str, Any] = {"model": model_title(loading.model), "draft_model": model_title(name)}
        found |= {"environment": environment(model)} | report.to_json()
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(report.lines()))
    return 0 if report.methods else 1
