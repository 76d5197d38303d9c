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
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from distillation import DistillationLoss, Expected, Weights
from train import Muon

WARM_STEPS = 50
TOKEN_WEIGHT = 0.1  # of the chosen token in the loss
LOSSES = ("target", "tokens", "rejected")
SAVE_STEPS, LOG_STEPS, LONG_ROW_STEPS = 250, 50, 10


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


def long_row(texts: list[Text], length: int, seed: str) -> list[Text]:
    """Return texts that fill a row of `length` tokens, so that late positions are trained, too."""
    rng = random.Random(seed)
    row = [rng.choice(texts)]
    while (room := length - sum(len(text.ids) for text in row)) > 1:
        text = rng.choice(texts)
        row.append(Text(text.ids[:room], text.top_ids[:room], text.top_logps[:room]))
    return row


def to_tensors(rows: list[list[Text]]) -> tuple[Tensor, Tensor, Expected]:
    """Return inputs [B, T], which of their positions count, and what the target computed at those.

    A row holds one text or several, as if they were one; no text's last token counts, since nothing follows it.
    """
    inputs = torch.zeros(len(rows), max(sum(len(text.ids) for text in row) for row in rows), dtype=torch.long)
    counted = torch.zeros_like(inputs, dtype=torch.bool)
    for i, row in enumerate(rows):
        start = 0
        for text in row:
            end = start + len(text.ids)
            inputs[i, start:end] = torch.from_numpy(text.ids)
            counted[i, start : end - 1] = True
            start = end
    texts = [text for row in rows for text in row]
    chosen, top_ids, top_logps = (
        torch.from_numpy(np.concatenate(fields))
        for fields in zip(*((text.ids[1:], text.top_ids[:-1], text.top_logps[:-1]) for text in texts), strict=True)
    )
    return inputs, counted, Expected(chosen.long(), top_ids.long(), top_logps.float().exp())


def objective(model: LlamaForCausalLM, rows: list[list[Text]], weights: Weights) -> tuple[Tensor, Tensor]:
    """Return what a step minimises, and the three losses it is made of."""
    inputs, counted, expected = to_tensors(rows)
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state[counted]
    return DistillationLoss.apply(hidden, model.lm_head.weight, expected, weights)


def weights_at(step: int, args: argparse.Namespace) -> Weights:
    """Return the weights of the losses; the last steps add the rejection rate."""
    accepting = step > args.steps - args.acceptance_steps
    return Weights(target=1.0, tokens=TOKEN_WEIGHT, rejected=args.acceptance_weight if accepting else 0.0)


def first_model(args: argparse.Namespace) -> LlamaForCausalLM:
    """Return the model to train: that of --init, or a new one with the target's embeddings, as far as they fit."""
    if args.init:
        return LlamaForCausalLM.from_pretrained(args.init, dtype=torch.float32)
    target = LlamaForCausalLM.from_pretrained(args.target, dtype=torch.float32)
    model = LlamaForCausalLM(build_config(target.config, args))
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(principal_components(target.model.embed_tokens.weight, args.hidden))
    return model


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
    model = first_model(args).train()
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
            rows = [[text] for text in batch]
            if done % LONG_ROW_STEPS == 0:
                rows = [long_row(texts, model.config.max_position_embeddings, f"{args.seed} {done}")]
            loss, parts = objective(model, rows, weights_at(done, args))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = args.lr * min(1.0, done / WARM_STEPS) * (1 - (done - 1) / args.steps)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            tokens += sum(len(text.ids) - 1 for row in rows for text in row)
            found = dict(zip(LOSSES, parts.tolist(), strict=True))
            smooth = {kind: 0.98 * smooth.get(kind, value) + 0.02 * value for kind, value in found.items()}
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
    parser.add_argument("--init", type=Path, help="draft model to go on from, instead of a new one")
    parser.add_argument("--resume", action="store_true", help="go on from the state in --out")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--acceptance-steps", type=int, default=0, help="last steps, which also train acceptance")
    parser.add_argument("--acceptance-weight", type=float, default=2.0)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=80)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--head", type=int, default=32, help="size of each of four heads")
    parser.add_argument("--feed-forward", type=int, default=208)
    parser.add_argument("--lr", type=float, default=1.5e-2)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(args)


if __name__ == "__main__":
    main()
