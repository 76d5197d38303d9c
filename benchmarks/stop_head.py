"""When to end a chain drafted by a draft model: a trained stop head compared with rules on the draft distribution.

SpecDec++ (Huang et al. 2024, arXiv 2405.19715) trains a residual network on the draft model's last hidden states to
predict whether a drafted token is accepted, and ends a chain when the probability that a token was rejected exceeds a
threshold. Here such a head is trained for the bundled draft model with weighted cross-entropy, on texts written by the
bundled model and on chains that the draft model continues itself. Held-out texts are then decoded round by round from
recorded chains, with every rule and a grid of its thresholds. This gives the tokens per target pass (MAT) and the
number of draft-model passes, hence the speed at any cost of a draft-model pass. Each rule uses the threshold that is
best on other texts at that cost. Heads are trained on 96 texts, for seconds.

    OMP_NUM_THREADS=1 python benchmarks/stop_head.py -o benchmarks/results/stop-head.json

`--temperature 0` and `--temperature 1` measure one temperature, and keep the other's figures in the output.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speculant.cli.env import environment
from targets import load_pair, story_prompts

LONGEST, PROMPT, STRIDE = 10, 32, 3  # tokens per chain and per prompt, and between two roots
COSTS = (0.02, 0.05, 0.1, 0.2, 0.3)  # cost of a draft-model pass, in target passes
LAYERS, REJECTED = 3, (1.0, 6.0)  # residual blocks, and weights of rejected tokens (the paper uses 3 and 6)
STEPS, EVERY = 1000, 25
TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """Drafted chains, K tokens deep, at some positions of some texts.

    Attributes:
        texts: Int64[R], index of the text of each root.
        accepted: Float32[R, K], the probability that a token is accepted if those before it were.
        best: Float32[R, K + 1], the highest probability of q after the root and after each token.
        entropy: Float32[R, K + 1], the entropy of q at the same positions.
        states: Float32[R, K, D], the draft model's last hidden states at the tokens.
        ends: number of text tokens after each root.
    """

    texts: np.ndarray
    accepted: np.ndarray
    best: np.ndarray
    entropy: np.ndarray
    states: Tensor
    ends: np.ndarray


class StopHead(nn.Module):
    """Computes acceptance logits [...] from states [..., D]."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(LAYERS)])
        self.out = nn.Linear(hidden, 1)

    def forward(self, states: Tensor) -> Tensor:
        for block in self.blocks:
            states = states + nn.functional.silu(block(states))
        found: Tensor = self.out(states).squeeze(-1)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=96, help="training texts")
    parser.add_argument("--chosen", type=int, default=32, help="texts for selecting training steps and thresholds")
    parser.add_argument("--test", type=int, default=32, help="held-out texts")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, choices=TEMPERATURES, help="the only one to measure")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pair = load_pair("bundled", dtype="float32", draft_model=None)
    counts = [args.train, args.chosen, args.test]
    prompts = story_prompts(pair.tokenizer, count=sum(counts), tokens=PROMPT)
    measured = TEMPERATURES if args.temperature is None else (args.temperature,)
    results: dict[str, Any] = {"environment": environment(), "texts": counts, "about": [], "rows": []}
    if len(measured) < len(TEMPERATURES) and args.out.exists():
        held = json.loads(args.out.read_text("utf-8"))
        results |= {
            name: [row for row in held[name] if row["temperature"] not in measured] for name in ("about", "rows")
        }
    for temperature in measured:
        torch.manual_seed(0)
        texts = torch.split(write_texts(pair.model, prompts, args.tokens, temperature), counts)
        about, rows = compare_rules(*(draft_chains(pair, part, temperature) for part in texts))
        results["about"].append({"temperature": temperature} | about)
        results["rows"] += [{"temperature": temperature} | row for row in rows]
    for name in ("about", "rows"):
        results[name].sort(key=lambda row: row["temperature"])
    args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def compare_rules(training: Chains, chosen: Chains, held_out: Chains) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train heads; return their quality, and each rule's figures on held-out texts at each cost."""
    began = time.process_time()
    heads = {weight: train(training, chosen, weight) for weight in REJECTED}
    seconds = time.process_time() - began
    rows = list[dict[str, Any]]()
    for name, lengths in rules(heads).items():
        for cost in COSTS:
            rows.append({"rule": name} | compare(lengths, chosen, held_out, cost))
            print(rows[-1], flush=True)
    with torch.inference_mode():
        scores = {f"stop head, {weight:g}": head(held_out.states)[:, 0].numpy() for weight, head in heads.items()}
    scores |= {"confidence": held_out.best[:, 0], "entropy": -held_out.entropy[:, 0]}
    about = {
        "roots": [len(each.texts) for each in (training, chosen, held_out)],
        "training_cpu_seconds": round(seconds, 1),
        "accepted": float(held_out.accepted[:, 0].mean()),
        "auc_of_the_first_token": {name: area(score, held_out.accepted[:, 0] > 0.5) for name, score in scores.items()},
    }
    print(about, flush=True)
    return about, rows


@torch.inference_mode()
def write_texts(model: Any, prompts: list[Any], tokens: int, temperature: float) -> Tensor:
    """Return the target's texts Int64[B, T], all of the same length."""
    ids = torch.tensor(np.stack(prompts), dtype=torch.long)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    found: Tensor = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, **sampling)
    return found


@torch.inference_mode()
def draft_chains(pair: Any, texts: Tensor, temperature: float) -> Chains:
    """Return the draft model's chains at every third token of the texts after the prompt."""
    rows, length = range(PROMPT, texts.shape[1] - 1, STRIDE), texts.shape[1]
    found = list[tuple[Any, ...]]()
    for place in rows:  # the root is the token at `place`; all texts in one batch
        ids = texts[:, : place + 1]
        best, entropy, states, drawn = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        for depth in range(LONGEST + 1):
            output = pair.draft_model(ids, output_hidden_states=True, logits_to_keep=1)
            q = (output.logits[:, -1] / (temperature or 1.0)).softmax(-1)
            best.append(q.max(-1).values)
            entropy.append(torch.special.entr(q).sum(-1))
            if depth:
                states.append(output.hidden_states[-1][:, -1])
            if depth == LONGEST:
                break
            token = torch.multinomial(q, 1) if temperature else q.argmax(-1, keepdim=True)
            drawn.append(q.gather(1, token)[:, 0])
            ids = torch.cat([ids, token], 1)
        logits = pair.model(ids, logits_to_keep=LONGEST + 1).logits[:, :-1]
        tokens = ids[:, place + 1 :]
        if temperature:
            p = (logits / temperature).softmax(-1).gather(2, tokens[..., None])[..., 0]
            accepted = (p / torch.stack(drawn, 1)).clamp(max=1.0)
        else:
            accepted = (logits.argmax(-1) == tokens).float()
        left = torch.full((len(texts),), length - 1 - place)
        found.append(
            (
                torch.arange(len(texts)),
                accepted,
                torch.stack(best, 1),
                torch.stack(entropy, 1),
                torch.stack(states, 1),
                left,
            )
        )
    parts = [torch.cat(each) for each in zip(*found, strict=True)]
    numbers = [each.numpy() for each in parts]
    return Chains(numbers[0], numbers[1], numbers[2], numbers[3], parts[4].clone(), numbers[5])


def train(chains: Chains, chosen: Chains, rejected: float) -> StopHead:
    """Return a head trained on drafted tokens, each weighted by the probability that a round reaches it.

    Args:
        chains: training chains.
        chosen: chains for selecting the best step.
        rejected: weight of rejected tokens.
    """
    torch.manual_seed(1)
    head = StopHead(chains.states.shape[-1])
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.1)
    best, kept = math.inf, head.state_dict()

    def loss_of(own: Chains, rows: Tensor) -> Tensor:
        label = torch.from_numpy(own.accepted)[rows]
        weight = torch.cat([torch.ones(len(rows), 1), label[:, :-1].cumprod(1)], 1)
        logits = head(own.states[rows])
        each = nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
        return (each * weight * (label + rejected * (1 - label))).sum() / weight.sum()

    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss_of(chains, torch.randint(len(chains.texts), (256,))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % EVERY == 0:
            with torch.inference_mode():
                loss = float(loss_of(chosen, torch.arange(len(chosen.texts))))
            if loss < best:
                best, kept = loss, {name: weight.clone() for name, weight in head.state_dict().items()}
    head.load_state_dict(kept)
    return head.eval()


Lengths = Callable[[Chains], tuple[np.ndarray, np.ndarray]]


def rules(heads: dict[float, StopHead]) -> dict[str, dict[float, Lengths]]:
    """Return, for each rule and threshold, a function that gives each chain's tokens and draft-model passes."""
    grid = [float(each) for each in (0.001, 0.003, 0.01, 0.03, *np.linspace(0.05, 0.95, 19))]

    @torch.inference_mode()
    def kept(head: StopHead, chains: Chains) -> np.ndarray:
        """Return the probability [R, K - 1] that tokens 1, 2, ... are all accepted."""
        return np.asarray(np.cumprod(head(chains.states).sigmoid().numpy(), 1)[:, :-1])

    def kept_and_next(head: StopHead, chains: Chains) -> np.ndarray:
        return np.asarray(kept(head, chains) * chains.best[:, 1:-1])

    values: dict[str, Callable[[Chains], np.ndarray]] = {  # tokens 2, 3, ... are drafted while above the threshold
        "confidence": lambda chains: chains.best[:, 1:-1],
        "joint confidence": lambda chains: np.cumprod(chains.best[:, :-1], 1)[:, 1:],
        "entropy": lambda chains: 1 - np.sqrt(0.2 * chains.entropy[:, 1:-1]),
    }
    for weight, head in heads.items():
        values[f"stop head, {weight:g}"] = partial(kept, head)
        values[f"stop head, {weight:g}, and confidence"] = partial(kept_and_next, head)
    lengths: dict[str, dict[float, Lengths]] = {
        name: {threshold: partial(lengths_above, value, threshold) for threshold in grid}
        for name, value in values.items()
    }
    lengths["fixed length"] = {float(count): partial(fixed_lengths, count) for count in range(1, LONGEST + 1)}
    return lengths


def fixed_lengths(count: int, chains: Chains) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and passes of chains of a fixed length."""
    return np.full(len(chains.texts), count), np.full(len(chains.texts), count)


def lengths_above(
    value: Callable[[Chains], np.ndarray], threshold: float, chains: Chains
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and passes of chains that continue while a value is above a threshold."""
    tokens = 1 + np.cumprod(value(chains) >= threshold, 1).sum(1).astype(int)
    return tokens, np.minimum(tokens + 1, LONGEST)  # one more pass is needed to see that a chain ends


def play(chains: Chains, lengths: Lengths) -> tuple[float, float]:
    """Return the expected MAT and draft-model passes per round, over all roots."""
    tokens, passes = lengths(chains)
    tokens, passes = np.minimum(tokens, chains.ends), np.minimum(passes, chains.ends)
    reached = np.cumprod(chains.accepted, 1) * (np.arange(LONGEST) < tokens[:, None])
    return 1 + float(reached.sum(1).mean()), float(passes.mean())


def compare(lengths: dict[float, Lengths], chosen: Chains, held_out: Chains, cost: float) -> dict[str, Any]:
    """Return a rule's figures on held-out texts, with the threshold that is best on the selection texts."""

    def speed(found: tuple[float, float]) -> float:
        return found[0] / (1 + cost * found[1])

    threshold = max(lengths, key=lambda each: speed(play(chosen, lengths[each])))
    mat, passes = play(held_out, lengths[threshold])
    return {"cost": cost, "threshold": round(threshold, 3), "mat": mat, "passes": passes, "speed": speed((mat, passes))}


def area(score: np.ndarray, label: np.ndarray) -> float:
    """Return the area under the ROC curve of a score."""
    order, right, count = np.argsort(np.argsort(score)), int(label.sum()), len(label)
    return float((order[label].sum() - right * (right - 1) / 2) / max(1, right * (count - right)))


if __name__ == "__main__":
    main()
