"""Measure quantisation error: KL divergence and perplexity of the bundled model and llama.cpp's formats; layer errors.

    python benchmarks/quantised_quality.py -o benchmarks/results/quantised-quality.json

Every model reads the same held-out stories; the reference is the same weights in float32. llama.cpp runs its own
products on files that it has quantised itself. Layer errors are those of the outputs of single layers with random
weights, in the sizes of the 0.5 B shape, computed in float32 from dequantised weights, so that only the weights differ.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from speculant.api.gguf import convert_model
from speculant.api.loading import load_model
from speculant.engines.hf.quantized.modules import quantized_modules
from speculant.engines.hf.quantized.rounding import round_weight

FORMATS = ("q8_0", "q4_0", "q4_k")
LAYERS = {"up": (4864, 896), "down": (896, 4864), "square": (1024, 1024)}
Predict = Callable[[list[int]], Tensor]


def main() -> None:
    """Run all measurements, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--stories", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=256, help="maximum tokens per story")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load_model(None)
    texts = list(stories(tokenizer, asked.stories, asked.tokens))
    reference = [log_probabilities(model)(ids) for ids in texts]
    found: dict[str, Any] = {"texts": len(texts), "tokens": sum(map(len, texts)), "models": {}, "layers": layers()}
    for name, size, predict in systems():
        row = compare(texts, reference, predict) | {"bytes": size}
        found["models"][name] = row
        print(f"{name:28} {json.dumps(row)}", flush=True)
    for name, row in found["layers"].items():
        print(f"{name:28} {json.dumps(row)}")
    Path(asked.output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def stories(tokenizer: Any, count: int, maximum: int) -> Iterator[list[int]]:
    """Yield the ids of the first held-out stories of more than 100 tokens."""
    path = Path(os.environ["SPECULANT_DATA"]) / "text" / "tinystories" / "heldout.txt"
    for story in path.read_text(encoding="utf-8").split("<|endoftext|>"):
        ids = tokenizer(story.strip())["input_ids"][:maximum]
        if len(ids) > 100:
            yield ids
            count -= 1
        if not count:
            return


def log_probabilities(model: Any) -> Predict:
    """Return a function from ids to log-probabilities, float32 [T, V]."""

    def predict(ids: list[int]) -> Tensor:
        with torch.inference_mode():
            return F.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)

    return predict


def systems() -> Iterator[tuple[str, int, Predict]]:
    """Yield the name, weight bytes and prediction function of each quantised model."""
    for scheme in ("int8", "int4"):
        model, _ = load_model(None, quantize=scheme, packed_cache=False)
        parts: list[Any] = [module for _, module in quantized_modules(model)]
        size = sum({id(each.quantized): int(each.quantized.bytes) for each in parts}.values())
        yield f"speculant {scheme}", size, log_probabilities(model)
        for module in parts:
            if hasattr(module, "activations"):
                module.activations = "float"
        yield f"speculant {scheme}, float inputs", size, log_probabilities(model)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("f32", *FORMATS):
            path = Path(folder) / f"{kind}.gguf"
            convert_model(None, path, kind=kind)
            yield f"llama.cpp {kind}", path.stat().st_size, llama_cpp(path)


def llama_cpp(path: Path) -> Predict:
    """Return the prediction function of llama.cpp on a file."""
    from llama_cpp import Llama

    model = Llama(str(path), n_ctx=512, n_batch=512, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)

    def predict(ids: list[int]) -> Tensor:
        model.reset()
        model.eval(ids)
        return F.log_softmax(torch.from_numpy(model.scores[: len(ids)].copy()).float(), dim=-1)

    return predict


def compare(texts: list[list[int]], reference: list[Tensor], predict: Predict) -> dict[str, float]:
    """Return KL divergence, agreement and perplexity over all tokens."""
    divergences, same, logs, seconds = [], [], [], -time.thread_time()
    for ids, before in zip(texts, reference, strict=True):
        after = predict(ids)
        divergences.append((before.exp() * (before - after)).sum(dim=-1))
        same.append((before.argmax(dim=-1) == after.argmax(dim=-1)).float())
        targets = torch.tensor(ids[1:])[:, None]
        logs.append(torch.cat((before[:-1].gather(1, targets), after[:-1].gather(1, targets)), dim=1))
    whole, agreeing, both = torch.cat(divergences), torch.cat(same), -torch.cat(logs).mean(dim=0)
    return {
        "kl": float(whole.mean()),
        "kl_error": float(whole.std() / len(whole) ** 0.5),
        "agreement": float(agreeing.mean()),
        "perplexity_before": math.exp(both[0]),
        "perplexity": math.exp(both[1]),
        "seconds": round(seconds + time.thread_time(), 2),
    }


def layers() -> dict[str, dict[str, float]]:
    """Return squared errors of layer outputs, relative to the squared outputs, by layer and format."""
    found = {}
    generator = torch.Generator().manual_seed(0)
    for name, (outs, k) in LAYERS.items():
        weight = torch.randn(outs, k, generator=generator) * 0.02
        x = torch.randn(64, k, generator=generator)
        exact = x @ weight.t()
        row = {}
        for kind, rounded in formats(weight):
            row[kind] = float((x @ rounded.t() - exact).square().sum() / exact.square().sum())
        found[f"{name} {outs} x {k}"] = row
    return found


def formats(weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a matrix quantised to several formats and dequantised."""
    for scheme in ("int8", "int4"):
        yield f"speculant {scheme}", round_weight(weight, scheme).dequantize()
    from gguf import GGMLQuantizationType, quants

    for kind in ("Q8_0", "Q4_0", "Q4_1", "Q4_K"):
        if weight.shape[1] % 256 == 0 or not kind.endswith("K"):
            number = GGMLQuantizationType[kind]
            yield (
                f"llama.cpp {kind}",
                torch.from_numpy(quants.dequantize(quantize(weight, number.value), number).copy()),
            )


def quantize(weight: Tensor, kind: int) -> np.ndarray:
    """Return a matrix quantised by llama.cpp's library, UInt8 [outs, bytes per row]."""
    import llama_cpp

    library = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    library.ggml_row_size.restype = ctypes.c_size_t
    library.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        *[ctypes.c_void_p] * 2,
        *[ctypes.c_int64] * 3,
        ctypes.c_void_p,
    ]
    plain = np.ascontiguousarray(weight.numpy(), dtype=np.float32)
    outs, k = plain.shape
    found = np.empty((outs, library.ggml_row_size(kind, k)), np.uint8)
    library.ggml_quantize_chunk(kind, plain.ctypes.data, found.ctypes.data, 0, outs, k, None)
    return found


if __name__ == "__main__":
    main()
