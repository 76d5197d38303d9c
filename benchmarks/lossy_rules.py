"""What lossy acceptance rules lose in quality for what they gain in speed, on the bundled model.

Each rule, with several thresholds, verifies the same kinds of drafts as a lossless rule: chains of four tokens of the
bundled draft model, chains of `bild`, and trees of 16 nodes of the bundled EAGLE head. All systems take turns on each
held-out story, in one process with one thread, and are compared with the lossless rule on the same drafts:

- `nats`: the target's mean negative log-probability (temperature 1) of the text; `excess`: that minus the lossless
  text's. At temperature 0 lower is better. At temperature 1 it is not: a lower one means less diverse text.
- `kl`: at temperature 1, KL(r || p) per token, where r is the distribution of the next token under the rule, given the
  text and q, and p the target's (`rule_divergence.py`).
- `changed`: at temperature 0, the share of the tokens of plain decoding that are not found, in order, in the text;
  `not_best`: the share of tokens that are not the target's most probable one.
- `mat` and `mat_gain`, tokens per pass; `speedup`: quartiles over the stories of CPU seconds per token of the lossless
  rule, divided by those of this rule, without the time spent on computing `kl`.

What anyone can have without a lossy rule is measured in the same way: the draft model alone, and lossless rules at
lower temperatures or with a smaller top_p.

    OMP_NUM_THREADS=1 python benchmarks/lossy_rules.py -o benchmarks/results/lossy-rules.json
    python benchmarks/lossy_rules.py --markdown benchmarks/results/lossy-rules.json

Recorded outputs cannot show this: they hold tokens but no probabilities, and a text continues differently once a rule
has accepted another token.
"""

from __future__ import annotations

import argparse
import difflib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rule_divergence import Meter, divergence_of
from speculant.api.heads import open_head
from speculant.api.loading import bundled_heads
from speculant.api.speculator import Speculator
from speculant.cli.env import environment
from speculant.cli.threads import set_threads
from speculant.core.tree import Int32
from targets import Pair, load_pair, story_prompts

WARM_UP = 2
PLAIN, ALONE, LOSSLESS = "plain", "draft model alone", "lossless"
CHAIN, TREE, BILD = "chain of 4", "tree of 16", "bild"
THRESHOLDS = (
    "typical:epsilon=0.5,delta=0.7",
    "typical:epsilon=0.25,delta=0.5",
    "typical:epsilon=0.09,delta=0.3",
    "typical:epsilon=0.03,delta=0.17",
    "top-beta:beta=2,gap=0.5",
    "top-beta:beta=3,gap=1",
    "top-beta:beta=5,gap=2",
    "blockwise:k=2",
    "blockwise:k=3",
    "rollback:threshold=1",
    "rollback:threshold=2",
    "rollback:threshold=3",
    "rollback:threshold=5",
)
OMITTED = (
    PLAIN,
    "typical:epsilon=0.5,delta=0.7",
    "typical:epsilon=0.03,delta=0.17",
    "top-beta:beta=5,gap=2",
    "blockwise:k=3",
    "rollback:threshold=3",
    "rollback:threshold=1, fallback 0.3",
    "rollback:threshold=1, fallback 0.5",
    "rollback:threshold=1, fallback 0.8",
    "rollback:threshold=2, fallback 0.5",
    "rollback:threshold=5, fallback 0.5",
    "nucleus:top_p=0.9",
    "lossless, top_p 0.9",
)
SAMPLED = tuple(each for each in THRESHOLDS if not each.startswith("blockwise"))


@dataclass(frozen=True, slots=True)
class System:
    """A drafting method with an acceptance rule ("lossless" for its default), at a temperature and top_p."""

    drafts: str
    rule: str
    temperature: float
    method: str
    nodes: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    top_p: float = 1.0

    @property
    def group(self) -> str:
        """What it is compared within."""
        return f"{self.drafts}, temperature {1 if self.temperature else 0}"


def systems() -> list[System]:
    """Return all systems; the lossless one of a group comes first."""
    chain, tree = System(CHAIN, LOSSLESS, 0.0, "draft-model", 4), System(TREE, LOSSLESS, 0.0, "eagle2", 16)
    found = [chain, *(replace(chain, rule=rule) for rule in THRESHOLDS)]
    found += [replace(chain, drafts=BILD, nodes=8)]
    found += [
        System(BILD, f"rollback:threshold={nats:g}", 0.0, "bild", 8, {"fallback": fallback})
        for fallback in (0.3, 0.5, 0.8)
        for nats in (1.0, 2.0, 5.0)
    ]
    found += [tree, *(replace(tree, rule=rule) for rule in THRESHOLDS)]
    for cold, lenient in ((chain, tuple(f"lenience:lenience={share:g}" for share in (0.8, 0.5, 0.2))), (tree, ())):
        warm = replace(cold, temperature=1.0)
        found += [warm, *(replace(warm, rule=rule) for rule in (*lenient, *SAMPLED))]
        found += [replace(warm, rule=f"nucleus:top_p={share:g}") for share in (0.9, 0.8)]
        found += [replace(warm, temperature=each) for each in (0.8, 0.6)]
        found += [replace(warm, top_p=each) for each in (0.9, 0.8)]
    return found


def name_of(system: System) -> str:
    """Return a system's name in the results."""
    extra = [f"fallback {system.settings['fallback']:g}"] if system.settings else []
    extra += [f"temperature {system.temperature:g}"] if system.temperature not in (0.0, 1.0) else []
    extra += [f"top_p {system.top_p:g}"] if system.top_p < 1 else []
    return ", ".join([system.rule, *extra])


@dataclass(slots=True)
class Sums:
    """What a system did on all stories."""

    tokens: int = 0
    rounds: int = 0
    nats: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    not_best: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, help="results file, to which groups that it lacks are added")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="only print the table of a results file")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per request")
    args = parser.parse_args()
    if args.markdown:
        print("\n".join(table(json.loads(args.markdown.read_text("utf-8"))["groups"])))
        return
    if args.out is None:
        parser.error("name the results file with -o")
    pair = load_pair("bundled", dtype="float32", draft_model=None)
    set_threads(pair.model, 1)
    prompts = story_prompts(pair.tokenizer, count=args.requests + WARM_UP, tokens=args.prompt_tokens)
    results: dict[str, Any] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {"groups": {}}
    results["conditions"] = {"requests": args.requests, "prompt_tokens": args.prompt_tokens, "tokens": args.tokens}
    results["environment"] = environment(pair.model)
    for group in dict.fromkeys(each.group for each in systems()):
        if group in results["groups"]:
            continue
        members = [each for each in systems() if each.group == group]
        results["groups"][group] = dict(measure(pair, members, prompts, args.tokens))
        print(group, json.dumps(results["groups"][group], indent=1), flush=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def measure(
    pair: Pair, members: Sequence[System], prompts: Sequence[Int32], tokens: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of plain decoding, of the draft model alone and of the systems of a group."""
    head = next(path for path in bundled_heads() if path.name == "eagle")
    warm = members[0].temperature
    named = {name_of(each): each for each in members}
    built = {name: build(pair, each, head) for name, each in named.items()}
    meters = {name: Meter(each.verifier) for name, each in built.items()}
    built[PLAIN] = Speculator.from_transformers(pair.model, pair.tokenizer, method="none")
    built[ALONE] = Speculator.from_transformers(pair.draft_model, pair.tokenizer, method="none")
    sums = {name: Sums() for name in (PLAIN, ALONE, *named)}
    for place, prompt in enumerate(prompts):
        first: list[int] = []
        for name, total in sums.items():
            system, meter = named.get(name), meters.get(name)
            cold, top_p = (system.temperature, system.top_p) if system else (warm, 1.0)
            sampling: dict[str, Any] = {"top_k": 0, "top_p": top_p, "seed": place} if cold else {}
            before = (meter.nats, meter.seconds) if meter else (0.0, 0.0)
            began = time.process_time()
            text = built[name].generate(prompt.tolist(), max_new_tokens=tokens, temperature=cold, **sampling)
            spent, first = time.process_time() - began, first or text.ids
            if place < WARM_UP:
                continue
            count = len(text.ids)
            total.tokens, total.rounds = total.tokens + count - 1, total.rounds + text.stats.rounds
            total.seconds.append((spent - (meter.seconds - before[1] if meter else 0.0)) / count)
            logits = judge(pair.model, prompt.tolist(), text.ids)
            total.nats.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor(text.ids))))
            total.not_best.append(float((logits.argmax(-1) != torch.tensor(text.ids)).float().mean()))
            total.changed.append(1 - matching(first, text.ids) / len(first))
            if system and (system.temperature not in (0.0, 1.0) or system.top_p < 1):
                total.kl.append(warped_divergence(logits, system))
            else:
                total.kl.append((meter.nats - before[0]) / count if meter else 0.0)
    best = sums[name_of(members[0])]
    for name, total in sums.items():
        own = asdict(named[name]) if name in named else {}
        yield (
            name,
            {**{key: value for key, value in own.items() if key != "drafts"}, **figures(total, best, warm, name)},
        )


def build(pair: Pair, system: System, head: Path) -> Speculator:
    """Return the speculator of a system."""
    options: dict[str, Any] = {
        "method": system.method,
        "nodes": system.nodes,
        "settings": dict(system.settings) or None,
    }
    if system.method == "eagle2":
        options |= {"head": open_head(str(head), pair.model), "settings": {"tree": "dynamic"}}
    else:
        options["draft_model"] = pair.draft_model
    if system.rule != LOSSLESS:
        options |= {"verifier": system.rule, "lossy": True}
    return Speculator.from_transformers(pair.model, pair.tokenizer, **options)


@torch.no_grad()
def judge(model: Any, prompt: list[int], text: list[int]) -> Tensor:
    """Return the target's logits [T, V] for the tokens of a text."""
    logits: Tensor = model(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1].float()
    return logits


def warped_divergence(logits: Tensor, system: System) -> float:
    """Return the mean KL between the target at a system's temperature and top_p, and the target."""
    p, r = logits.softmax(-1), (logits / system.temperature).softmax(-1)
    if system.top_p < 1:
        ordered, places = r.sort(-1, descending=True)
        left = torch.where(ordered.cumsum(-1) - ordered < system.top_p, ordered, 0.0)
        r = torch.zeros_like(r).scatter(-1, places, left / left.sum(-1, keepdim=True))
    return float(np.mean([divergence_of(a, b) for a, b in zip(r, p, strict=True)]))


def matching(plain: list[int], text: list[int]) -> int:
    """Return the number of tokens of one text that are found in order in another."""
    blocks = difflib.SequenceMatcher(None, plain, text, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks)


def figures(total: Sums, best: Sums, warm: float, name: str) -> dict[str, Any]:
    """Return a system's figures beside those of the lossless one of its group."""
    mat = total.tokens / total.rounds if total.rounds else 1.0
    ratios = [mine / other for mine, other in zip(best.seconds, total.seconds, strict=True)]
    found: dict[str, Any] = {
        "texts": len(ratios),
        "passes": total.rounds,
        "mat": round(mat, 3),
        "mat_gain": round(mat / (best.tokens / best.rounds), 3),
        "speedup": np.quantile(ratios, [0.25, 0.5, 0.75]).round(3).tolist(),
        "nats": round(float(np.mean(total.nats)), 4),
        "excess": round(float(np.mean(total.nats) - np.mean(best.nats)), 4),
        "not_best": round(float(np.mean(total.not_best)), 4),
    }
    if not warm:
        return found | {"changed": round(float(np.mean(total.changed)), 4)}
    return found if name == ALONE else found | {"kl": round(float(np.mean(total.kl)), 4)}


def table(groups: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the tables, one per temperature, without the remaining thresholds."""
    for temperature, columns in ((0, ("excess", "changed")), (1, ("kl",))):
        chosen = {name: each for name, each in groups.items() if name.endswith(str(temperature))}
        heads = [f"{name.partition(',')[0]}: MAT | speed-up | {' | '.join(columns)}" for name in chosen]
        yield f"| rule, temperature {temperature} | {' | '.join(heads)} |"
        yield "|---|" + "---:|" * (len(chosen) * (2 + len(columns)))
        for rule in dict.fromkeys(rule for each in chosen.values() for rule in each if rule not in OMITTED):
            cells = []
            for each in chosen.values():
                found = each.get(rule)
                own = [f"{found['mat']:.2f}", f"{found['speedup'][1]:.2f}"] if found else ["-", "-"]
                cells += own + [f"{found[key]:.3f}" if found and key in found else "-" for key in columns]
            yield f"| {rule} | {' | '.join(cells)} |"
        yield ""


if __name__ == "__main__":
    main()
