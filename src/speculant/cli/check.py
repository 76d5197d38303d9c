"""`speculant check`: proves token by token that a method says what the model says."""

from __future__ import annotations

import argparse
import json

from speculant.cli.env import environment
from speculant.cli.options import Subparsers, add_loading_options, build_speculator, whole
from speculant.cli.output import say
from speculant.cli.prompts import read_prompts

DESCRIPTION = """\
Decode greedily with drafts, then force every emitted token through the plain model, one pass a token, and report its
margin: the best token's logit minus its own. In float32 every token is the best; in bfloat16 passes of different
sizes round differently, so some are near-ties, and they are counted. Ends with 1 if a token is neither."""

PROMPTS = (
    "Once upon a time there was a little dog who",
    "One two three four. One two three four. One two three",
    "The capital of France is",
)
MARKS = {True: "near-tie", False: "WRONG"}


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser("check", help="prove that drafts change nothing", description=DESCRIPTION)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a folder or a hub id; default: the bundled model")
    parser.add_argument("--method", metavar="NAME", default="mix", help="see `speculant methods`; default: mix")
    parser.add_argument(
        "--prompts", metavar="FILE", help="as for generate --prompts; default: three short ones that come with it"
    )
    parser.add_argument("--max-new-tokens", metavar="N", type=whole(1), default=128, help="default: 128")
    parser.add_argument("--nodes", metavar="N", type=whole(0), help="most tokens per draft; default: as many as pay")
    parser.add_argument(
        "--memory-limit", metavar="MB", type=whole(1), default=256, help="most the memory may take; default: 256"
    )
    add_loading_options(parser.add_argument_group("model"))
    parser.add_argument("--json", action="store_true", help="as JSON, without any text")
    parser.set_defaults(run=run, memory=None)


def run(args: argparse.Namespace) -> int:
    """Decode, force, count."""
    prompts = list(PROMPTS) if args.prompts is None else read_prompts(args.prompts)
    speculator = build_speculator(args)
    import numpy as np

    from speculant.bench.suite.margin_summary import MarginSummary
    from speculant.bench.suite.margins import margins
    from speculant.core.errors import PromptError, TokenizerError

    if speculator.tokenizer is None:
        raise TokenizerError("the prompts are text, and this model has no tokenizer.")
    plain = type(speculator).from_transformers(speculator.model, method="none", fast=False)
    proofs = []
    for number, prompt in enumerate(prompts, start=1):
        ids = speculator.tokenizer(prompt)["input_ids"]
        try:
            result = speculator.generate(ids, max_new_tokens=args.max_new_tokens, temperature=0)
        except PromptError as error:
            raise PromptError(f"prompt {number}: {error}") from None
        proofs.append(MarginSummary(margins(plain, np.array(ids, np.int32), result.ids)))
        say(f"{number} of {len(prompts)}: {proofs[-1].line()}")
    whole_proof = MarginSummary([margin for proof in proofs for margin in proof.margins])
    if args.json:
        found = {"method": args.method, "environment": environment(speculator.model)} | whole_proof.to_json()
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
        print(f"{args.method}: {whole_proof.line()}")
    return 1 if whole_proof.wrong else 0
