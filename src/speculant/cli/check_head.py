"""`speculant check --head` without a method: describes a head, and checks whether it fits a target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from speculant.cli.head_file import read_head
from speculant.cli.prompts import Prompt, encode_prompt
from speculant.core.errors import UnsupportedError
from speculant.core.hub import title
from speculant.core.stats import compute_mat
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions

TOKENS = 32  # tokens per continuation
NODES = 16  # nodes per draft


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
    from speculant.cli.env import environment
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
    if as_json:
        record: dict[str, Any] = {"model": model_title(loading.model), "head": title(source)}
        print(json.dumps(record | {"environment": environment(model)} | report.to_json(), indent=2))
    else:
        print("\n".join(report.lines()))
    return 1 if report.obstacle else 0
