"""`speculant check`: proves token by token that drafts do not change the output; describes draft models and heads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.core.errors import PromptError, TokenizerError, UsageError
from speculant.options import kinds, option
from speculant.options.drafting import DraftingOptions
from speculant.options.model import MODEL_HELP, ModelOptions
from speculant.options.printing import PrintOptions

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.bench.suite.margins import MarginSummary
    from speculant.cli.prompts import Prompt

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What is decoded."""

    named: str | None = option.option(None, MODEL_HELP, kinds.name(metavar="PATH|ID"), flag="")
    prompts: str | None = option.option(
        None, "prompts, as for generate --prompts; default: three short ones", kinds.FILE_NAME
    )
    max_new_tokens: int | None = option.option(
        None, "maximum tokens per prompt; default: 128, for pairs 32", kinds.whole(1)
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", cls=Command, help=HELP, epilog=EXAMPLES)(bind(check))


def check(
    options: Annotated[CheckOptions, Take(arguments={"named": "MODEL"})],
    printing: Annotated[PrintOptions, Take(changes={"json": {"help": "print JSON that contains no text"}})],
    drafting: Annotated[DraftingOptions, Take(without=("memory", "online", "share"))],
    model: ModelOptions,
) -> int:
    """Decode with drafts, compare with the plain model, report."""
    from speculant.cli.check_fit import report_head, report_pair
    from speculant.cli.loading import load_speculator
    from speculant.cli.prompts import read_prompts

    prompts = list(PROMPTS) if options.prompts is None else read_prompts(options.prompts)
    if model.model is not None and options.named is not None:
        raise UsageError("MODEL and --model both name the model; leave one out.")
    loading = model if options.named is None else replace(model, model=options.named)
    if only_describes(drafting):
        report = report_pair if drafting.head is None else report_head
        return report(loading, drafting, prompts, tokens=options.max_new_tokens, as_json=printing.json)
    speculator = load_speculator(loading, drafting).speculator
    proofs = prove(speculator, prompts, options.max_new_tokens or TOKENS)
    return report_proofs(speculator, proofs, as_json=printing.json)


def only_describes(drafting: DraftingOptions) -> bool:
    """Return whether options name a draft model or a head to describe, and no method to check.

    Raises:
        UsageError: they name several, or options of a method.
    """
    pair, head = drafting.draft_model, drafting.head
    if pair and head is not None and drafting.method is None:
        raise UsageError("only one of --draft-model and --head can be reported; leave one out, or add --method.")
    if not (pair or head is not None) or drafting.method is not None or drafting.drafter is not None:
        return False
    if len(pair or ()) > 1:
        raise UsageError("only one draft model can be reported; leave the others out, or add --method specinfer.")
    if drafting.settings or drafting.nodes is not None or drafting.verifier or drafting.lossy:
        raise UsageError("--set, --nodes, --verifier and --lossy belong to a method; add --method, or leave them out.")
    return True


def prove(speculator: Speculator, prompts: Sequence[Prompt], tokens: int) -> list[MarginSummary]:
    """Return the margins of every token of each prompt's continuation, under the plain model.

    Args:
        speculator: the model with its drafter.
        prompts: prompts to continue.
        tokens: maximum tokens per prompt.

    Raises:
        TokenizerError: the model has no tokenizer.
        PromptError: a prompt cannot be decoded.
    """
    import numpy as np

    from speculant.bench.suite.margins import MarginSummary, margins
    from speculant.cli.prompts import encode_prompt
    from speculant.cli.terminal import say

    if speculator.tokenizer is None:
        raise TokenizerError("the prompts are text, and this model has no tokenizer.")
    plain = type(speculator).from_transformers(speculator.model, method="none", fast=False)
    proofs = list[MarginSummary]()
    for number, prompt in enumerate(prompts, start=1):
        ids = encode_prompt(speculator, number, prompt)
        try:
            result = speculator.generate(ids, max_new_tokens=tokens, temperature=0)
        except PromptError as error:
            raise PromptError(f"prompt {number}: {error}") from None
        proofs.append(MarginSummary(margins(plain, np.array(ids, np.int32), result.ids)))
        say(f"{number} of {len(prompts)}: {proofs[-1].line()}")
    return proofs


def report_proofs(speculator: Speculator, proofs: Sequence[MarginSummary], *, as_json: bool) -> int:
    """Print the margins; return 1 if a token is neither the plain model's nor a near-tie, else 0."""
    from speculant.api.engines import describe_model
    from speculant.bench.suite.margins import MarginSummary
    from speculant.cli.env import environment

    whole = MarginSummary([margin for proof in proofs for margin in proof.margins])
    places = [
        {"prompt": number} | place
        for number, proof in enumerate(proofs, start=1)
        for place in proof.to_json()["places"]
    ]
    quantized = describe_model(speculator.model).quantized
    if as_json:
        found = {"method": speculator.method, "environment": environment(speculator.model)} | whole.to_json()
        print(json.dumps(found | ({"against": AGAINST} if quantized else {}) | {"places": places}, indent=2))
        return 1 if whole.wrong else 0
    for place in places:
        print(
            f"prompt {place['prompt']}, token {place['position']}: margin {place['margin']:.3g} "
            f"(rounding explains {place['tolerance']:.3g}): {MARKS[place['near_tie']]}"
        )
    print(f"{speculator.method}: {whole.line()}")
    if quantized and not whole.wrong:
        print(f"The text is lossless {AGAINST}.")
    return 1 if whole.wrong else 0
