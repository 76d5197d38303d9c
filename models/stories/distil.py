"""Train the draft model: a Llama of two narrow layers that predicts what the story model would write.

It learns from the texts of `target_texts.py`. At every position it follows the target's distribution, given by its 32
most probable tokens and the probability of all others together, and a little the token that the target chose. The last
part of the steps maximises the acceptance rate itself, sum min(p, q), as DistillSpec does by the total variation
distance (Zhou et al. 2024, arXiv 2310.08461). The embeddings, two thirds of the parameters, begin as the principal
components of the target's.

The schedule counts steps, and the batches of a step depend on the seed and the step alone. The state is saved every 250
steps; `--resume` continues after an interruption as if there had been none.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from train import IGNORED, Muon

TOKEN_WEIGHT = 0.1  # of the chosen token in the loss
SAVE_STEPS, LOG_STEPS = 250, 50


@dataclass(frozen=True, slots=True)
class Text:
    """A text of the target: its tokens, and the most probable tokens that could follow each."""

    ids: np.ndarray
    top_ids: np.ndarray
    top_logps: np.ndarray


def read_texts(folder: Path) -> list[Text]:
    """Return the texts of all shards."""
    texts = []
    for path in sorted(folder.glob("texts-???.npz")):
        with np.load(path) as shard:
            fields = [shard[name] for name in ("ids", "top_ids", "top_logps")]
            places = np.cumsum(shard["lengths"])[:-1]
        texts += [Text(*parts) for parts in zip(*(np.split(field, places) for field in fields), strict=True)]
    return texts


def build_config(target: LlamaConfig, args: argparse.Namespace) -> LlamaConfig:
    """Return the shape; vocabulary and special tokens are the target's."""
    return LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=args.hidden,
        intermediate_size=args.feed_forward,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=args.head,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        tie_word_embeddings=True,
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        pad_token_id=target.pad_token_id,
    )


def principal_components(embeddings: Tensor, width: int, deviation: float = 0.05) -> Tensor:
    """Return the embeddings [V, width] along their principal directions, with a standard deviation for small logits."""
    directions = torch.linalg.svd(embeddings, full_matrices=False).Vh[:width]
    narrow = embeddings @ directions.T
    return narrow * (deviation / narrow.std())


def batches_of(texts: list[Text], batch_tokens: int, seed: str) -> list[list[Text]]:
    """Split an epoch into batches of texts of like length, about `batch_tokens` each, in random order."""
    rng = random.Random(seed)
    jittered = sorted(texts, key=lambda text: len(text.ids) * rng.uniform(0.9, 1.1))
    batches: list[list[Text]] = [[]]
    longest = 0
    for text in jittered:
        longest = max(longest, len(text.ids))
        if longest * (len(batches[-1]) + 1) > batch_tokens and batches[-1]:
            batches.append([])
            longest = len(text.ids)
        batches[-1].append(text)
    rng.shuffle(batches)
    return batches


def to_tensors(batch: list[Text]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs and targets [B, T], and for the N targets that count the target's tokens and probabilities."""
    inputs = torch.zeros(len(batch), max(len(text.ids) for text in batch) - 1, dtype=torch.long)
    targets = torch.full_like(inputs, IGNORED)
    for row, text in enumerate(batch):
        ids = torch.from_numpy(text.ids).long()
        inputs[row, : len(ids) - 1] = ids[:-1]
        targets[row, : len(ids) - 1] = ids[1:]
    top_ids = torch.from_numpy(np.concatenate([text.top_ids[:-1] for text in batch])).long()
    top_logps = torch.from_numpy(np.concatenate([text.top_logps[:-1] for text in batch])).float()
    return inputs, targets, top_ids, top_logps.exp()


def losses_of(model: LlamaForCausalLM, batch: list[Text]) -> dict[str, Tensor]:
    """Return the means over positions of three losses.

    `tokens` is the cross-entropy of the chosen tokens, `target` that of the target's distribution, and `rejected` one
    minus the acceptance rate within the target's most probable tokens.
    """
    inputs, targets, top_ids, top_probs = to_tensors(batch)
    counted = targets != IGNORED
    logits = model.lm_head(model.model(input_ids=inputs, use_cache=False).last_hidden_state[counted])
    logps = logits.gather(1, torch.cat([top_ids, targets[counted][:, None]], dim=1)) - logits.logsumexp(1, keepdim=True)
    found, chosen = logps[:, :-1], logps[:, -1]
    probs = found.exp()
    other = (1 - top_probs.sum(1)).clamp(min=0)
    other_logp = torch.log1p(-probs.sum(1).clamp(max=1 - 1e-5))
    return {
        "tokens": -chosen.mean(),
        "target": -((top_probs * found).sum(1) + other * other_logp).mean(),
        "rejected": 1 - torch.minimum(probs, top_probs).sum(1).mean(),
    }


def objective(losses: dict[str, Tensor], step: int, args: argparse.Namespace) -> Tensor:
    """Return what a step minimises; the last steps add the acceptance rate."""
    loss = losses["target"] + TOKEN_WEIGHT * losses["tokens"]
    return loss if step < args.steps - args.acceptance_steps else args.acceptance_weight * losses["rejected"] + loss


def optimizers_of(model: LlamaForCausalLM, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers and AdamW for the rest."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed" in name]
    return [
        Muon(matrices, lr=args.lr, weight_decay=args.weight_decay),
        torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def save(model: LlamaForCausalLM, out: Path) -> None:
    """Write the model in bf16; its tokenizer is the target's."""
    half = LlamaForCausalLM(model.config).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    half.config.dtype = torch.bfloat16
    half.save_pretrained(out)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    target = LlamaForCausalLM.from_pretrained(args.target, dtype=torch.float32)
    model = LlamaForCausalLM(build_config(target.config, args)).train()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(principal_components(target.model.embed_tokens.weight, args.hidden))
    del target
    texts = read_texts(args.texts)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {sum(len(t.ids) for t in texts)} tokens an epoch")
    optimizers = optimizers_of(model, args)
    args.out.mkdir(parents=True, exist_ok=True)
    state = args.out / "state.pt"
    first, epoch, log = 0, 0, []
    smooth: dict[str, float] = {}
    if args.resume:
        kept = torch.load(state, weights_only=True)
        model.load_state_dict(kept["model"])
        for optimizer, values in zip(optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        first, log, smooth = kept["step"], kept["log"], kept["smooth"]
    clock, tokens, done = time.process_time(), 0, 0
    while done < args.steps:
        batches = batches_of(texts, args.batch_tokens, f"{args.seed} {epoch}")
        epoch += 1
        for batch in batches[: args.steps - done]:
            done += 1
            if done <= first:
                continue
            losses = losses_of(model, batch)
            objective(losses, done, args).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = args.lr * min(1.0, done / 100) * (1 - (done - 1) / args.steps)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            tokens += sum(len(text.ids) - 1 for text in batch)
            smooth |= {kind: 0.98 * smooth.get(kind, loss.item()) + 0.02 * loss.item() for kind, loss in losses.items()}
            if done % LOG_STEPS == 0:
                log.append({"step": done, **{kind: round(loss, 4) for kind, loss in smooth.items()}})
                speed = tokens / (time.process_time() - clock)
                print(f"{time.strftime('%H:%M:%S')} {log[-1]}  {speed:.0f} tokens per CPU second", flush=True)
            if done % SAVE_STEPS == 0 or done == args.steps:
                save(model, args.out)
                kept = {"optimizers": [optimizer.state_dict() for optimizer in optimizers], "smooth": smooth}
                torch.save({"model": model.state_dict(), "step": done, "log": log, **kept}, state)
    (args.out / "draft-training.json").write_text(json.dumps(log, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, help="folder of the story model")
    parser.add_argument("texts", type=Path, help="folder with the texts of target_texts.py")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder that gets the draft model")
    parser.add_argument("--resume", action="store_true", help="go on from the state in --out")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--acceptance-steps", type=int, default=3000, help="last steps, which also train acceptance")
    parser.add_argument("--acceptance-weight", type=float, default=2.0)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=80)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--head", type=int, default=32, help="size of each of four heads")
    parser.add_argument("--feed-forward", type=int, default=208)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(args)


if __name__ == "__main__":
    main()
