"""`speculant check`: proves token by token that drafts do not change a model's output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from speculant.cli.commands import Command
from speculant.cli.options import (
    AttentionOption,
    DeviceOption,
    Drafting,
    DraftModelOption,
    DtypeOption,
    FastOption,
    Loading,
    LossyFlag,
    MemoryLimitOption,
    MethodOption,
    ModelArgument,
    NodesOption,
    SetOption,
    ThreadsOption,
    VerifierOption,
)
from speculant.cli.values import whole
from speculant.core.errors import UsageError

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.cli.prompts import Prompt

HELP = """\
Decode greedily with drafts, then force every emitted token through the plain model, one pass a token, and report its
margin: the highest logit minus the token's own.

In float32 every token has the highest logit; in bfloat16 passes of different sizes round differently, so some are
near-ties, and they are counted. Ends with 1 if a token is neither."""

EXAMPLES = """
speculant check your/model --method mix
speculant check your/model --dtype bfloat16 --json > proof.json
"""

PROMPTS = (
    "Once upon a time there was a little dog who",
    "One two three four. One two three four. One two three",
    "The capital of France is",
)
MARKS = {True: "near-tie", False: "WRONG"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", cls=Command, help=HELP, epilog=EXAMPLES)(check)


def check(
    model: ModelArgument = None,
    prompts: Annotated[
        str | None,
        typer.Option("--prompts", metavar="FILE", help="as for generate --prompts; default: three short ones"),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", metavar="N", parser=whole(1), help="for each prompt; default: 128")
    ] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, without any text")] = False,
    method: MethodOption = "mix",
    settings: SetOption = None,
    verifier: VerifierOption = None,
    lossy: LossyFlag = False,
    draft_model: DraftModelOption = None,
    nodes: NodesOption = None,
    memory_limit: MemoryLimitOption = 256,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    attention: AttentionOption = None,
    fast: FastOption = None,
    threads: ThreadsOption = None,
) -> int:
    """Decode, force, count."""
    from speculant.cli.env import environment
    from speculant.cli.loading import load_speculator
    from speculant.cli.prompts import read_prompts
    from speculant.cli.terminal import say

    given = list(PROMPTS) if prompts is None else read_prompts(prompts)
    loading = Loading(model=model, dtype=dtype, device=device, attention=attention, fast=fast, threads=threads)
    drafting = Drafting(
        method=method,
        settings=tuple(settings or ()),
        nodes=nodes,
        memory_limit=memory_limit,
        verifier=verifier,
        lossy=lossy,
        draft_model=draft_model,
    )
    speculator = load_speculator(loading, drafting).speculator
    import numpy as np

    from speculant.bench.suite.margin_summary import MarginSummary
    from speculant.bench.suite.margins import margins
    from speculant.core.errors import PromptError, TokenizerError

    if speculator.tokenizer is None:
        raise TokenizerError("the prompts are text, and this model has no tokenizer.")
    plain = type(speculator).from_transformers(speculator.model, method="none", fast=False)
    proofs = []
    for number, prompt in enumerate(given, start=1):
        ids = encoded(speculator, number, prompt)
        try:
            result = speculator.generate(ids, max_new_tokens=max_new_tokens, temperature=0)
        except PromptError as error:
            raise PromptError(f"prompt {number}: {error}") from None
        proofs.append(MarginSummary(margins(plain, np.array(ids, np.int32), result.ids)))
        say(f"{number} of {len(given)}: {proofs[-1].line()}")
    whole_proof = MarginSummary([margin for proof in proofs for margin in proof.margins])
    if as_json:
        found = {"method": method, "environment": environment(speculator.model)} | whole_proof.to_json()
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
        print(f"{method}: {whole_proof.line()}")
    return 1 if whole_proof.wrong else 0


def encoded(speculator: Speculator, number: int, prompt: Prompt) -> list[int]:
    """Return a prompt's token ids.

    Raises:
        UsageError: it has several turns.
    """
    if isinstance(prompt, tuple):
        raise UsageError(f"prompt {number} has several turns; checking takes single prompts and chats.")
    if isinstance(prompt, list):
        return speculator.encode_chat(prompt)
    ids: list[int] = speculator.tokenizer(prompt)["input_ids"]
    return ids
