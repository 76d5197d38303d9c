"""Train the story model: a small Llama on TinyStories, in about an hour on two CPU cores.

Small data wants many epochs, so the recipe leans on what resists overfitting and on what learns most per
token: Muon for the matrices (Jordan et al. 2024), AdamW for the rest, weight decay, a rate that falls
linearly to zero, channel dropout on what every block adds to the residual stream, and dropped input tokens.
The first third of the time trains half the layers, which are then stacked on top of themselves (Du et al.
2024, "Stacking Your Transformers"): cheap steps while there is only coarse structure to learn. Most batches
hold whole stories of like length; every tenth holds long rows of several stories, so that all positions are
trained and the model can go on after a story's end. `--init FOLDER` goes on from a checkpoint at full depth.
`--early-exit SCALE` also trains every layer to exit, by LayerSkip's loss and layer dropout.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from speculant.training.layer_skip import LayerSkip, LayerSkipSettings
from tokenizer import read_stories

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% if not loop.last %}\n{% endif %}{% endfor %}"
IGNORED = -100


def build_config(vocab_size: int, layers: int) -> LlamaConfig:
    """Return the shape; every width is divisible by 32, heads by 2, so that other engines take it."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal by a Newton-Schulz iteration, in fp32.

    `torch.optim.Muon` iterates in bfloat16, which CPUs without bf16 instructions emulate slowly.
    """

    def __init__(self, params: list[nn.Parameter], *, lr: float, momentum: float = 0.95, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for shape in {p.shape for p in group["params"]}:
                same = [p for p in group["params"] if p.shape == shape]
                grads = torch.stack([p.grad for p in same])
                state = self.state[same[0]]
                momentum = state.setdefault("momentum", torch.zeros_like(grads))
                momentum.lerp_(grads, 1 - group["momentum"])
                update = orthogonalize(grads.lerp(momentum, group["momentum"]))
                scale = group["lr"] * 0.2 * math.sqrt(max(shape))  # an AdamW-sized step (Liu et al. 2025)
                for p, u in zip(same, update, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u, alpha=-scale)


def orthogonalize(x: Tensor, steps: int = 5) -> Tensor:
    """Return the matrices [K, m, n] with their singular values pushed near one (quintic Newton-Schulz)."""
    transposed = x.size(-2) > x.size(-1)
    x = x.mT if transposed else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if transposed else x


def drop_channels(module: nn.Module, rate: float) -> None:
    """Drop whole channels of what the block adds to the residual stream, one choice per sequence."""

    def hook(_module: nn.Module, _args: object, output: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        if not module.training:
            return output
        first = output[0] if isinstance(output, tuple) else output
        keep = torch.rand(first.size(0), 1, first.size(2), device=first.device) >= rate
        dropped = first * keep / (1 - rate)
        return (dropped, *output[1:]) if isinstance(output, tuple) else dropped

    module.register_forward_hook(hook)


def drop_tokens(embedding: nn.Module, rate: float) -> None:
    """Blank whole input tokens, so that a story cannot be told from its exact beginning (Gal and Ghahramani 2016)."""

    def hook(module: nn.Module, _args: object, output: Tensor) -> Tensor:
        return output * (torch.rand(*output.shape[:2], 1, device=output.device) >= rate) if module.training else output

    embedding.register_forward_hook(hook)


def whole_stories(documents: list[list[int]], batch_tokens: int, rng: random.Random) -> list[list[list[int]]]:
    """Split an epoch into batches of stories of like length, about `batch_tokens` each, in random order."""
    jittered = sorted(documents, key=lambda document: len(document) * rng.uniform(0.9, 1.1))
    batches: list[list[list[int]]] = [[]]
    longest = 0
    for document in jittered:
        longest = max(longest, len(document))
        if longest * (len(batches[-1]) + 1) > batch_tokens and batches[-1]:
            batches.append([])
            longest = len(document)
        batches[-1].append(document)
    rng.shuffle(batches)
    return batches


def long_rows(documents: list[list[int]], length: int, batch_tokens: int, rng: random.Random) -> list[list[int]]:
    """Return one batch of rows of `length` tokens, each starting with a whole story and going on with others."""
    rows = []
    for _ in range(max(1, batch_tokens // length)):
        row: list[int] = []
        while len(row) < length:
            row += rng.choice(documents)
        rows.append(row[:length])
    return rows


def to_tensors(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Pad to a multiple of 32 and shift: inputs and targets [B, T], padding ignored in the loss."""
    length = math.ceil((max(map(len, rows)) - 1) / 32) * 32
    inputs = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), IGNORED)
    for i, row in enumerate(rows):
        inputs[i, : len(row) - 1] = torch.tensor(row[:-1])
        targets[i, : len(row) - 1] = torch.tensor(row[1:])
    return inputs, targets


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a complete transformers checkpoint in bf16."""
    half = LlamaForCausalLM(model.config).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    half.config.dtype = torch.bfloat16
    half.save_pretrained(out)
    tokenizer.save_pretrained(out)


def prepare(model: LlamaForCausalLM, args: argparse.Namespace) -> tuple[LlamaForCausalLM, list[torch.optim.Optimizer]]:
    """Put the model on the device with dropout hooks and fresh optimizers."""
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").train()
    for layer in model.model.layers:
        drop_channels(layer.self_attn, args.dropout)
        drop_channels(layer.mlp, args.dropout)
    drop_tokens(model.model.embed_tokens, args.token_dropout)
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed" in name]
    print(f"{sum(p.numel() for p in model.parameters())} parameters in {len(model.model.layers)} layers")
    return model, [
        Muon(matrices, lr=args.lr, weight_decay=args.weight_decay),
        torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def exits_of(model: LlamaForCausalLM, args: argparse.Namespace) -> LayerSkip | None:
    """Return what trains the layers of a model to exit; None without --early-exit."""
    if not args.early_exit:
        return None
    settings = LayerSkipSettings(scale=args.early_exit, dropout=args.layer_dropout, from_scratch=not args.init)
    return LayerSkip(model.model.layers, lambda x: model.lm_head(model.model.norm(x)), settings)


def stack(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a model of twice the depth whose upper half repeats the lower."""
    depth = model.config.num_hidden_layers
    deeper = LlamaForCausalLM(build_config(model.config.vocab_size, 2 * depth))
    deeper.load_state_dict(model.state_dict(), strict=False)
    for i, layer in enumerate(model.model.layers):
        deeper.model.layers[depth + i].load_state_dict(layer.state_dict())
    return deeper


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(args.out / "tokenizer.json"),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<unk>",
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    stories = read_stories(args.data / "train-a.txt", args.data / "train-b.txt")
    documents = [[*ids, 2] for ids in tokenizer(stories)["input_ids"]]

    if args.init:
        fresh = LlamaForCausalLM.from_pretrained(args.init, dtype=torch.float32)
    else:
        fresh = LlamaForCausalLM(build_config(len(tokenizer), args.layers // 2))
    model, optimizers = prepare(fresh, args)
    skip = exits_of(model, args)
    print(f"{sum(map(len, documents))} tokens an epoch")
    start, seen, step, warm, smooth = time.time(), 0, 0, 0, None
    batches: list[list[list[int]]] = []
    log = []
    while (progress := (time.time() - start) / (60 * args.minutes)) < 1:
        if progress > args.stack_at and model.config.num_hidden_layers < args.layers:
            model, optimizers = prepare(stack(model), args)
            skip, warm = exits_of(model, args), step
        rate = args.lr * min(1.0, (step - warm + 1) / 100) * (1 - progress)
        if not batches:
            batches = whole_stories(documents, args.batch_tokens, rng)
        rows = long_rows(documents, 1024, args.batch_tokens, rng) if step % 10 == 9 else batches.pop()
        inputs, targets = to_tensors(rows)
        if skip is not None:
            skip.begin(progress)
        logits = model(input_ids=inputs.to(model.device), use_cache=False).logits
        if skip is not None:
            loss = skip.loss(targets.to(model.device), step=step)
        else:
            loss = F.cross_entropy(logits.flatten(0, 1), targets.to(model.device).flatten(), ignore_index=IGNORED)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen += int((targets != IGNORED).sum())
        smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
        step += 1
        if step % 50 == 0:
            minutes = (time.time() - start) / 60
            log.append({"step": step, "minutes": round(minutes, 2), "tokens": seen, "loss": round(smooth, 4)})
            print(
                f"step {step}  {minutes:5.1f} min  {seen / 60 / minutes:6.0f} tokens/s  loss {smooth:.3f}", flush=True
            )
        if step % 500 == 0:
            save(model, tokenizer, args.out)
    save(model, tokenizer, args.out)
    (args.out / "training.json").write_text(json.dumps(log, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with train-a.txt and train-b.txt")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder with tokenizer.json; gets the model")
    parser.add_argument("--init", type=Path, help="checkpoint to go on from, of all --layers, instead of fresh weights")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--token-dropout", type=float, default=0.05)
    parser.add_argument("--early-exit", type=float, default=0.0, metavar="SCALE", help="LayerSkip's e_scale; 0: none")
    parser.add_argument("--layer-dropout", type=float, default=0.1, help="of the last layer, with --early-exit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--stack-at", type=float, default=0.3, help="share of the time with half the layers")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
