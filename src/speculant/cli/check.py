"""`speculant check`: proves token by token that drafts do not change the output; describes draft models and heads."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import typer

from speculant.cli.binding import Take, bind, parse
from speculant.cli.commands import Command
from speculant.core.errors import UsageError
from speculant.options import kinds
from speculant.options.drafting import DraftingOptions
from speculant.options.model import MODEL_HELP, ModelOptions

HELP = """\
Decode greedily with drafts, then check every token with the plain model, one pass per token, and report its margin: the
highest logit minus the token's own.

In float32 every token has the highest logit. In bfloat16, passes of different sizes round differently, so some tokens
are near-ties, which are counted. The exit code is 1 if a token is neither. With quantised weights, the text is compared
with that of the same quantised weights; what quantising changed is not measured.

With --draft-model and no --method: report whether that draft model fits, its vocabulary, the methods that can use it,
and how many of its tokens the model accepts. The exit code is 1 if no method can use it.

With --head and no --method: report the head's format, kind and size, what it reads of the model, whether it fits, and
how many tokens per pass it yields. The exit code is 1 if it does not fit."""

EXAMPLES = """
speculant check your/model --method mix
speculant check your/model --dtype bfloat16 --json > proof.json
speculant check your/model --draft-model your/smaller-model
speculant check your/model --head your/head
"""

PROMPTS = (
    "Once upon a time there was a little dog who",
    "One two three four. One two three four. One two three",
    "The capital of France is",
)
TOKENS = 128  # tokens per prompt
AGAINST = "against the same quantised weights without drafts"
MARKS = {True: "near-tie", False: "WRONG"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", cls=Command, help=HELP, epilog=EXAMPLES)(bind(check))


def check(
    named: Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP)] = None,
    prompts: Annotated[
        str | None,
        typer.Option("--prompts", metavar="FILE", help="prompts, as for generate --prompts; default: three short ones"),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            metavar="N",
            parser=parse(kinds.whole(1)),
            help="maximum tokens per prompt; default: 128, for pairs 32",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON that contains no text")] = False,
    *,
    drafting: Annotated[DraftingOptions, Take(without=("memory", "online", "share"))],
    model: ModelOptions,
) -> int:
    """Decode with drafts, compare with the plain model, report."""
    from speculant.cli.check_head import report_head
    from speculant.cli.check_pair import report_pair
    from speculant.cli.env import environment
    from speculant.cli.loading import load_speculator
    from speculant.cli.prompts import encode_prompt, read_prompts
    from speculant.cli.terminal import say

    given = list(PROMPTS) if prompts is None else read_prompts(prompts)
    if model.model is not None and named is not None:
        raise UsageError("MODEL and --model both name the model; leave one out.")
    loading = model if named is None else replace(model, model=named)
    pair, head, method = drafting.draft_model, drafting.head, drafting.method
    if pair and head is not None and method is None:
        raise UsageError("only one of --draft-model and --head can be reported; leave one out, or add --method.")
    described = bool(pair or head is not None) and method is None and drafting.drafter is None
    if described and len(pair or ()) > 1:
        raise UsageError("only one draft model can be reported; leave the others out, or add --method specinfer.")
    if described and (drafting.settings or drafting.nodes is not None or drafting.verifier or drafting.lossy):
        raise UsageError("--set, --nodes, --verifier and --lossy belong to a method; add --method, or leave them out.")
    if described:
        report = report_pair if head is None else report_head
        return report(loading, drafting, given, tokens=max_new_tokens, as_json=as_json)
    speculator = load_speculator(loading, drafting).speculator
    import numpy as np

    from speculant.api.engines import describe_model
    from speculant.bench.suite.margins import MarginSummary, margins
    from speculant.core.errors import PromptError, TokenizerError

    if speculator.tokenizer is None:
        raise TokenizerError("the prompts are text, and this model has no tokenizer.")
    plain = type(speculator).from_transformers(speculator.model, method="none", fast=False)
    proofs = []
    for number, prompt in enumerate(given, start=1):
        ids = encode_prompt(speculator, number, prompt)
        try:
            result = speculator.generate(ids, max_new_tokens=max_new_tokens or TOKENS, temperature=0)
        except PromptError as error:
            raise PromptError(f"prompt {number}: {error}") from None
        proofs.append(MarginSummary(margins(plain, np.array(ids, np.int32), result.ids)))
        say(f"{number} of {len(given)}: {proofs[-1].line()}")
    quantized = describe_model(speculator.model).quantized
    whole_proof = MarginSummary([margin for proof in proofs for margin in proof.margins])
    if as_json:
        found = {"method": speculator.method, "environment": environment(speculator.model)} | whole_proof.to_json()
        if quantized:
            found["against"] = AGAINST
        found["places"] = [
            {"prompt": i} | each for i, p in enumerate(proofs, start=1) for each in p.to_json()["places"]
        ]
        print(json.dumps(found, indent=2))
    else:
        for number, proof in enumerate(proofs, start=1):
            for place in proof.to_json()["places"]:
                print(
                    f"prompt {number}, token {place['position']}: margin {place['margin']:.3g} "
                    f"(rounding explains {place['tolerance']:.3g}): {MARKS[place['near_tie']]}"
                )
        print(f"{speculator.method}: {whole_proof.line()}")
        if quantized and not whole_proof.wrong:
            print(f"The text is lossless {AGAINST}.")
    return 1 if whole_proof.wrong else 0
