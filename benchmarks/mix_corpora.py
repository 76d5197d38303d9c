"""The corpora of the measured frozen bases: documents as token ids, excluding overlap with the recordings.

Chat is answers of other models to AlpacaEval's instructions, which are unrelated to those of the recordings except
vicuna-7b-alpaca's, which are the same; code is that of SPECULANT_DATA and Python's standard library; maths is worked
answers of GSM8K; prose is books. Documents that share a 13-gram of tokens with a recording are left out.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import sysconfig
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant.bench.replay.traces import Recording
from speculant.memory.ngrams import NgramSet

LLAMA3 = tuple(f"llama31-8b-{name}" for name in ("cnn", "gsm8k", "instructcoder", "sharegpt"))
LLAMA2 = ("vicuna-7b-mtbench",)
VOCABULARIES = {"llama3": 128_256, "llama2": 32_000}
WEIGHTS = {"chat": 1.0, "code": 0.5, "prose": 0.3, "maths": 1.0}
PIECE = 8000  # characters per piece of code or prose, which is excluded as a whole
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
Tokens = NDArray[np.int32]


def llama3_encoder(path: Path) -> Callable[[str], list[int]]:
    """Return the encoder of a Llama 3 tokenizer file."""
    import tiktoken

    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, path.read_bytes().splitlines())}
    encoding = tiktoken.Encoding("llama3", pat_str=LLAMA3_PATTERN, mergeable_ranks=ranks, special_tokens={})
    return lambda text: [*encoding.encode_ordinary(text), 128_009]


def llama2_encoder(path: Path) -> Callable[[str], list[int]]:
    """Return the encoder of a Llama 2 tokenizer file."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda text: [*processor.encode(text), 2]


def answers(data: Path) -> Iterator[dict[str, str]]:
    """Yield the "prompt" and "output" of every document of chat."""
    for part in ("a", "b"):
        with gzip.open(data / "corpora" / f"answers-{part}.jsonl.gz", "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)


def documents(data: Path, answered: Container[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the domain and text of every document, without chat that answers one of these instructions."""
    yield from (("chat", row["output"]) for row in answers(data) if row["prompt"] not in answered)
    library = Path(sysconfig.get_path("stdlib"))
    modules = [path for path in sorted(library.rglob("*.py")) if not {"test", "tests", "site-packages"} & {*path.parts}]
    code, prose = sorted((data / "text/code").glob("*.txt")), sorted((data / "text/prose").glob("*.txt"))
    for path in (*modules, *code, *prose):
        text = path.read_text(encoding="utf-8", errors="replace").replace("<|endoftext|>", "")
        domain = "prose" if path in prose else "code"
        yield from ((domain, text[at : at + PIECE]) for at in range(0, len(text), PIECE))
    prompts = data / "prompts"
    for row in rows_of(prompts / "humaneval.jsonl"):
        yield "code", row["prompt"] + row["canonical_solution"]
    for row in rows_of(prompts / "mbpp.jsonl"):
        yield "code", row["text"] + "\n" + row["code"].replace("\r\n", "\n")
    for row in rows_of(prompts / "gsm8k-test.jsonl"):
        yield "maths", row["question"] + "\n" + re.sub(r"<<.*?>>", "", row["answer"])


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines file."""
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def excluded(recordings: dict[str, list[Recording]]) -> NgramSet:
    """Return the 13-grams of recordings, except those of the chat template, which most recordings share."""
    found, shared = NgramSet(), 40
    for recorded in recordings.values():
        for recording in recorded:
            found.add(recording.prompt[shared:])
            found.add(recording.output)
    return found


def asked(data: Path, encode: Callable[[str], list[int]], recorded: Iterable[Recording]) -> set[str]:
    """Return the instructions of chat that occur in a recorded prompt."""
    prompts = [recording.prompt.astype(np.int32).tobytes() for recording in recorded]
    instructions = {text: np.array(encode(text)[:-1], np.int32) for text in {row["prompt"] for row in answers(data)}}
    return {text for text, ids in instructions.items() if any(ids.tobytes() in prompt for prompt in prompts)}


def encoded(
    data: Path, encode: Callable[[str], list[int]], banned: NgramSet, answered: Container[str] = ()
) -> dict[str, list[Tokens]]:
    """Return the documents of each domain as ids, without chat that answers one of these instructions."""
    found: dict[str, list[Tokens]] = {name: [] for name in WEIGHTS}
    for domain, text in documents(data, answered):
        ids = np.array(encode(text), np.int32)
        if not banned.shares(ids):
            found[domain].append(ids)
    return found
