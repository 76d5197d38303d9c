"""Cost of drafting with a model's own MTP layer relative to the target's pass, with full and reduced vocabulary.

A model of Qwen3.5's shape with random weights gets an MTP module with random weights in Qwen's layout, read by the
loader of native heads. Alternating in one process: passes over several numbers of rows, chains of one to four drafted
tokens (the row of the accepted token, then one row per token), and the parts of a step. The share of a round is the
time of a chain divided by the time of the chain and the pass that verifies it. `tokens_needed` is the number of tokens
per round at which drafting is as fast as decoding without it.

    python benchmarks/mtp_step.py benchmarks/shape-qwen3.5-0.8b.json -o benchmarks/results/mtp-step.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from speculant.bench.systems.random_weights import random_model
from speculant.cli.env import environment
from speculant.core.drafter import EMPTY_PATH, Budget, Session, SessionRequest, Verified
from speculant.core.tree import DraftTree
from speculant.drafters.heads.checkpoints.checkpoint import Checkpoint
from speculant.drafters.heads.drafter import HeadDrafter, HeadSettings, LoadedHead
from speculant.drafters.heads.mtp.checkpoint import load_native
from speculant.engines.hf.cpu.accelerate import prepare_model
from speculant.engines.hf.engine import HFEngine
from speculant.engines.hf.target_cache import HFTargetCache
from speculant.engines.hf.views.target_parts import HFTargetParts

ROWS, DEPTHS, PROMPT = (1, 2, 3, 4, 5, 8), (1, 2, 3, 4), 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="config.json of the shape")
    parser.add_argument("-o", "--out", type=Path, help="results file, extended by dtype")
    parser.add_argument("--dtype", default="bfloat16", help="a torch dtype; default: bfloat16")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; default: 1")
    parser.add_argument("--turns", type=int, default=7, help="repetitions of each measurement; default: 7")
    parser.add_argument("--frequent", type=int, default=32768, help="size of the reduced vocabulary")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = random_model(args.config, dtype=args.dtype, device="cpu")
    engine = HFEngine(model, acceleration=prepare_model(model, True))
    target = HFTargetParts(model, fast=True)
    head = load_native(Checkpoint("random", {}, module_tensors(model)), target).eval().requires_grad_(False)
    loaded = LoadedHead(head, target, "mtp", "mtp")
    with tempfile.TemporaryDirectory() as folder:
        frequent = Path(folder) / "frequent.json"
        frequent.write_text(json.dumps([*range(args.frequent)]), "utf-8")
        settings = {"all": HeadSettings(tree="chain"), "frequent": HeadSettings(tree="chain", vocabulary=str(frequent))}
        drafters = {name: HeadDrafter(loaded, settings=each) for name, each in settings.items()}
    found = measure(engine, drafters, args.turns)
    facts = {"threads": args.threads, "turns": args.turns, "prompt": PROMPT, "frequent": args.frequent}
    facts |= {"mtp_weights": sum(each.numel() for each in head.parameters())}
    facts |= {"target_weights": sum(each.numel() for each in model.parameters()), "vocabulary": target.vocabulary}
    result = facts | {"environment": environment()} | found | rounds(found)
    print(json.dumps({key: value for key, value in result.items() if key != "environment"}, indent=1))
    if args.out:
        whole = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {}
        whole |= {"config": json.loads(args.config.read_text("utf-8")), args.dtype: result}
        args.out.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")


def module_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return random tensors of one MTP module under Qwen's names, shaped like the model's full-attention layers."""
    torch.manual_seed(2)
    size, layers = model.config.hidden_size, model.model.layers
    full = layers[model.config.layer_types.index("full_attention")]
    shapes = {f"mtp.layers.0.{name}": each.shape for name, each in full.state_dict().items()}
    shapes |= {f"mtp.{name}.weight": torch.Size([size]) for name in ("norm", "pre_fc_norm_embedding")}
    shapes |= {"mtp.pre_fc_norm_hidden.weight": torch.Size([size]), "mtp.fc.weight": torch.Size([size, 2 * size])}
    return {name: (0.02 * torch.randn(shape)).to(model.dtype) for name, shape in shapes.items()}


def measure(engine: HFEngine, drafters: dict[str, HeadDrafter], turns: int) -> dict[str, Any]:
    """Return median milliseconds of passes, chains and parts of a step, which alternate."""
    torch.manual_seed(1)
    sequence = engine.open(torch.randint(10, engine.model.config.vocab_size, (1, PROMPT)))
    assert isinstance(sequence, HFTargetCache)
    sequence.prefill()
    work: dict[tuple[str, ...], Callable[[], None]] = {}
    for rows in ROWS:
        work["pass_ms", str(rows)] = partial(verify, sequence, rows)
    for name, drafter in drafters.items():
        session, parts = begun(drafter), drafter.head.target
        for depth in DEPTHS:
            work["chain_ms", name, str(depth)] = partial(draft, session, parts, depth)
        row = torch.randn(1, parts.hidden_size).to(engine.model.dtype)
        work["projection_ms", name] = partial(project, parts, row)
    times: dict[tuple[str, ...], list[float]] = {key: [] for key in work}
    for _ in range(turns + 1):  # the first is warm-up
        for key, run in work.items():
            begin = time.perf_counter()
            run()
            times[key].append(time.perf_counter() - begin)
    found: dict[str, Any] = {}
    for (first, *others, last), each in times.items():
        place = found.setdefault(first, {})
        for name in others:
            place = place.setdefault(name, {})
        place[last] = round(1000 * median(each[1:]), 3)
    return found


def begun(drafter: HeadDrafter) -> Session:
    """Return a session that has read the prompt."""
    session = drafter.open(SessionRequest(prompt=np.arange(PROMPT, dtype=np.int32)))
    observe(session, drafter.head.target, PROMPT)
    return session


def observe(session: Session, parts: Any, rows: int) -> None:
    """Give a session the hidden states of accepted tokens, of which only the last is new to it."""
    states = torch.randn(rows, 1, parts.hidden_size).to(parts.projection().dtype)
    tokens = np.array([20], np.int32)
    session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=tokens, hidden=states))


def draft(session: Session, parts: Any, depth: int) -> None:
    """Accept one token and draft a chain."""
    observe(session, parts, 1)
    assert len(session.propose(Budget(nodes=depth, depth=depth))) == depth


@torch.inference_mode()
def project(parts: Any, row: torch.Tensor) -> None:
    """Compute the logits of a row."""
    parts.project(row)


def verify(sequence: HFTargetCache, rows: int) -> None:
    """Run a pass over a root and a chain, with the hidden states that a head needs, and roll it back."""
    tokens = np.arange(rows, dtype=np.int32) + 20
    sequence.forward(tokens, np.arange(-1, rows - 1, dtype=np.int32))
    sequence.rollback()


def rounds(found: dict[str, Any]) -> dict[str, Any]:
    """Return drafting's share of a round and the tokens that it needs, by vocabulary and chain length."""
    plain: float = found["pass_ms"]["1"]
    result: dict[str, dict[str, dict[str, float]]] = {}
    for name, chains in found["chain_ms"].items():
        for depth, chain in chains.items():
            whole = chain + found["pass_ms"][str(int(depth) + 1)]
            share = {"share": round(chain / whole, 3), "tokens_needed": round(whole / plain, 2)}
            result.setdefault(name, {})[depth] = share
    return {"rounds": result}


if __name__ == "__main__":
    main()
