"""`speculant check --draft-model` and `--head` without a method: whether a draft model or a head fits a target."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from speculant.cli.head_file import read_head
from speculant.cli.prompts import Prompt, encode_prompt
from speculant.core.errors import UnsupportedError
from speculant.core.hub import title
from speculant.core.stats import compute_mat
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions

if TYPE_CHECKING:
    from speculant.bench.suite.head_report import HeadReport
    from speculant.bench.suite.pair_report import PairReport

TOKENS = 32  # tokens per continuation
NODES = 16  # nodes per draft of a head


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
    named = {"model": model_title(loading.model), "draft_model": model_title(name)}
    print_report(report, model, named, as_json=as_json)
    return 0 if report.methods else 1


def report_head(
    loading: ModelOptions, drafting: DraftingOptions, prompts: Sequence[Prompt], *, tokens: int | None, as_json: bool
) -> int:
    """Load the head and its target, compare, measure and print; return 1 if the head does not fit, else 0.

    Args:
        loading: loading options of the target.
        drafting: drafting options, with the head.
        prompts: prompts on whose continuations acceptance is measured.
        tokens: number of tokens per continuation; None for 32.
        as_json: whether to print JSON.
    """
    from speculant.cli.loading import load, model_title

    source = str(drafting.head)
    found = read_head(source)
    model, tokenizer, _ = load(loading, needed="trained heads read hidden states of decoder layers")
    from speculant.api.speculator import Speculator
    from speculant.bench.suite.head_report import HeadFacts, HeadReport
    from speculant.bench.suite.pair_report import ModelFacts

    facts, target = HeadFacts.of(found.checkpoint, found.format), ModelFacts.of(model)
    try:
        head = found.open(model)
    except UnsupportedError as error:
        report = HeadReport(facts=facts, target=target, obstacle=str(error))
    else:
        measured: dict[str, Any] = {}
        if tokenizer is not None:
            speculator = Speculator.from_transformers(model, tokenizer, head=head, nodes=NODES)
            stats = [
                speculator.generate(
                    encode_prompt(speculator, number, prompt), max_new_tokens=tokens or TOKENS, temperature=0
                ).stats
                for number, prompt in enumerate(prompts, start=1)
            ]
            rounds = sum(each.rounds for each in stats)
            written = sum(each.tokens for each in stats)
            measured = {"mat": compute_mat(written, rounds, texts=len(stats)) if rounds else None, "tokens": written}
        report = HeadReport.of(facts, target, head, **measured)
    named = {"model": model_title(loading.model), "head": title(source)}
    print_report(report, model, named, as_json=as_json)
    return 1 if report.obstacle else 0


def print_report(report: HeadReport | PairReport, model: Any, named: Mapping[str, str], *, as_json: bool) -> None:
    """Print a report.

    Args:
        report: what was found.
        model: the target.
        named: names of the target and of what was compared with it, for JSON.
        as_json: whether to print JSON.
    """
    from speculant.cli.env import environment

    if as_json:
        print(json.dumps({**named, "environment": environment(model), **report.to_json()}, indent=2))
    else:
        print("\n".join(report.lines()))
