"""Train the small byte-level model used by `sparse_cache.py decode`, on long files of source code.

The package has no model for long texts, and with random weights no draft is accepted. This one has 0.8 million
parameters, 4 layers and RoPE with a base of 500,000. It reads bytes and is trained for half an hour on one core, with
512, then 2,048, then 8,192 positions, so the number of steps depends on the machine. The last 15% of each file are held
out and written next to the weights as held-out.npy.

    python benchmarks/sparse_cache_model.py $SPECULANT_DATA/text/code -o MODEL
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

PHASES = ((0.6, 512, 8), (0.85, 2048, 2), (1.0, 8192, 1))  # end as a share of the time, positions, texts per step
RATE, WARM_UP = 3e-3, 100
HELD_OUT = 0.15
CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=65536,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
)


def split_files(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes Int64[T] of a folder's texts to train on, and the held-out ones."""
    texts = [np.frombuffer(path.read_bytes(), np.uint8) for path in sorted(folder.glob("*.txt"))]
    parts = [np.split(text, [int(len(text) * (1 - HELD_OUT))]) for text in texts]
    trained, held = (np.concatenate(each).astype(np.int64) for each in zip(*parts, strict=True))
    return trained, held


def train(text: np.ndarray, seconds: float) -> LlamaForCausalLM:
    """Return the model after `seconds` of training on bytes Int64[T]."""
    torch.manual_seed(0)
    model, random, losses = LlamaForCausalLM(CONFIG).train(), np.random.default_rng(0), list[float]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.05)
    began = time.perf_counter()
    while (done := (time.perf_counter() - began) / seconds) < 1:
        _, positions, texts = next(phase for phase in PHASES if done < phase[0])
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (len(losses) + 1) / WARM_UP) * (1 - 0.95 * done)
        starts = random.integers(0, len(text) - positions - 1, texts)
        ids = torch.from_numpy(np.stack([text[start : start + positions + 1] for start in starts]))
        logits = model(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % 50 == 0:
            print(f"step {len(losses)}, {positions} positions: {np.mean(losses[-50:]):.3f} nats a byte", flush=True)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder of texts")
    parser.add_argument("--minutes", type=float, default=28)
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder for the model")
    args = parser.parse_args()
    trained, held = split_files(args.folder)
    model = train(trained, 60 * args.minutes)
    model.save_pretrained(args.out)
    np.save(args.out / "held-out.npy", held.astype(np.uint8))


if __name__ == "__main__":
    main()
