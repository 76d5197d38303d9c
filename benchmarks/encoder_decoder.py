"""Rewriting with an encoder-decoder: a small T5 repairs noised stories, with drafts copied from its source.

SAD, Blockwise Parallel Decoding and SpecDec were published on such models. `train` trains one within minutes on one
core (the bundled model's tokenizer; words dropped, doubled, swapped or replaced); its weights are not distributed.
`distil` trains a draft model for it, with the encoder and embeddings of the model and the first layer of its decoder,
as distil-whisper keeps its teacher's encoder (Gandhi et al. 2023, arXiv 2311.00430). `heads` lets the model rewrite
passages, and trains Blockwise and SpecDec heads on them. `measure` rewrites held-out passages without and with drafts,
greedily and sampled, with both sides alternating.

    python benchmarks/encoder_decoder.py train MODEL
    python benchmarks/encoder_decoder.py distil MODEL --draft DRAFT --minutes 2
    python benchmarks/encoder_decoder.py heads MODEL --heads HEADS --minutes 4
    python benchmarks/encoder_decoder.py measure MODEL --draft DRAFT --heads HEADS -o benchmarks/results
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

import speculant
from speculant import Speculator
from speculant.cli.env import environment
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest
from speculant.core.engine import RequestedOutputs
from speculant.core.tree import DraftTree
from speculant.core.wrapped_session import WrappedSession
from speculant.engines.hf.draft_encoder import same_weights
from speculant.training.files import Files
from speculant.training.fingerprint import identify
from speculant.training.kinds import find_kind
from speculant.training.reading import read_data
from speculant.training.run import train_head
from speculant.training.settings import TrainSettings
from speculant.training.sources import decoder_start
from speculant.training.writing import WritingSettings, write_texts

NOISE = 0.12  # share of a passage's words
SHORTEST, LONGEST = 4, 32  # words per passage; the maximum rises from the first to the second
WORDS, RATE, WARM_UP = 320, 2e-3, 100  # per step
MINUTES = 7.0  # CPU time
SEPARATOR = "<|endoftext|>"
TEMPERATURES = (0.0, 1.0)
SYSTEMS = {  # method, and whether only chains are requested
    "sad, chain": ("sad", False),
    "lookup, chain": ("lookup", True),
    "lookup, tree": ("lookup", False),
    "mix, chain": ("mix", True),
    "mix, tree": ("mix", False),
}


DRAFTED: dict[str, tuple[str, int | None]] = {  # method with the draft model, and nodes per draft; None for automatic
    "draft-model": ("draft-model", None),
    "draft-model, 4 nodes": ("draft-model", 4),
    "mix-model": ("mix-model", None),
    "mix-model, 8 nodes": ("mix-model", 8),
}


HEADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # kinds, their options, and settings of the training
    "blockwise": ({}, {}),
    "specdec": ({"encoder": 1, "decoder": 1}, {"depth": 4, "anchors": 16}),
}
HEADED: dict[str, tuple[str, int | None, dict[str, Any]]] = {  # method with a head, nodes per draft, and settings
    "blockwise": ("blockwise", None, {}),
    "blockwise, chain of 4": ("blockwise", 4, {}),
    "blockwise, tree of 8": ("blockwise", 8, {"tree": "dynamic"}),
    "specdec": ("specdec", None, {}),
    "specdec, chain of 4": ("specdec", 4, {}),
    "specdec, tree of 8": ("specdec", 8, {"tree": "dynamic"}),
    "mix-head with specdec": ("mix-head", None, {}),
}
PAIRS, ROWS, NEW_TOKENS = 6000, 100, 96  # passages that the model rewrites for its heads, at a time, and their length
LEARNED = ((0.5, 0.0), (0.5, 1.0))  # shares of their temperatures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("train", "distil", "heads", "measure"))
    parser.add_argument("model", type=Path, help="the model's folder")
    parser.add_argument("--draft", type=Path, help="the draft model's folder")
    parser.add_argument("--only-draft", action="store_true", help="measure the draft model, and keep the other results")
    parser.add_argument("--heads", type=Path, help="folder of the heads, by kind")
    parser.add_argument("--kinds", default=",".join(HEADS), help="kinds of heads to train")
    parser.add_argument("--only-heads", action="store_true", help="measure the heads, and keep the other results")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="minutes of training, of a head by the clock")
    parser.add_argument("--texts", type=int, default=24, help="passages to rewrite")
    parser.add_argument("-o", "--out", type=Path, help="folder for encoder-decoder.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    stories = Path(os.environ["SPECULANT_DATA"]) / "text/tinystories"
    tokenizer = AutoTokenizer.from_pretrained(Path(speculant.__file__).parent / "models/stories")
    if arguments.action == "train":
        texts = (stories / "train-a.txt").read_text("utf-8") + (stories / "train-b.txt").read_text("utf-8")
        model = train(new_model(tokenizer), tokenizer, texts.split(SEPARATOR), arguments.minutes * 60)
        model.save_pretrained(arguments.model)
    elif arguments.action == "distil":
        texts = (stories / "train-a.txt").read_text("utf-8")
        draft = first_layer(T5ForConditionalGeneration.from_pretrained(arguments.model))
        train(draft, tokenizer, texts.split(SEPARATOR), arguments.minutes * 60).save_pretrained(arguments.draft)
    elif arguments.action == "heads":
        texts = (stories / "train-a.txt").read_text("utf-8")
        kinds = arguments.kinds.split(",")
        train_heads(load(arguments.model), tokenizer, texts.split(SEPARATOR), arguments.heads, arguments.minutes, kinds)
    else:
        model = load(arguments.model)
        draft = None if arguments.draft is None else load(arguments.draft)
        held = (stories / "heldout.txt").read_text("utf-8").split(SEPARATOR)
        systems = {} if arguments.only_draft else SYSTEMS
        if arguments.only_heads:  # the model may have been trained again, so others are measured beside them
            systems = {name: SYSTEMS[name] for name in ("lookup, chain", "mix, tree")}
        found = measure(model, tokenizer, held, arguments.texts, systems, draft, arguments.heads)
        out = arguments.out / "encoder-decoder.json"
        if part := "draft_models" if arguments.only_draft else "heads" if arguments.only_heads else "":
            found = {**json.loads(out.read_text("utf-8")), part: found}
        out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def load(folder: Path) -> Any:
    model = T5ForConditionalGeneration.from_pretrained(folder, attn_implementation="sdpa").eval()
    # transformers 5.23 sizes the decoder's cache by the number of the encoder's layers
    model.config.num_layers = model.config.num_decoder_layers
    return model


def noised(words: Sequence[str], choice: random.Random, others: Sequence[str]) -> list[str]:
    """Return the words with some of them dropped, doubled, swapped with the next, or replaced."""
    found = list[str]()
    for word in words:
        kind = choice.random() / NOISE
        if kind >= 1:
            found.append(word)
        elif kind > 0.75:
            found += [word, word]
        elif kind > 0.5:
            found.insert(max(0, len(found) - 1), word)
        elif kind > 0.25:
            found.append(choice.choice(others))
    return found or list(words)


def draw_pair(
    stories: Sequence[str], tokenizer: Any, choice: random.Random, others: Sequence[str], words: int
) -> tuple[list[int], list[int]]:
    """Return a noised passage and the passage itself, as ids that end with the end-of-text token."""
    part = list[str]()
    while len(part) < words:
        story = choice.choice(stories).split()
        start = choice.randrange(max(1, len(story) - words))
        part = story[start : start + words]
    return encode(tokenizer, noised(part, choice, others)), encode(tokenizer, part)


def encode(tokenizer: Any, words: Sequence[str]) -> list[int]:
    ids: list[int] = tokenizer(" ".join(words), add_special_tokens=False)["input_ids"]
    return [*ids, tokenizer.eos_token_id]


def new_model(tokenizer: Any) -> T5ForConditionalGeneration:
    """Return the model with random weights."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=128,
        d_kv=32,
        d_ff=384,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    return T5ForConditionalGeneration(config)


def first_layer(model: T5ForConditionalGeneration) -> T5ForConditionalGeneration:
    """Return a model with the encoder, embeddings and first decoder layer of another; only its decoder is trained."""
    config = T5Config.from_dict({**model.config.to_dict(), "num_decoder_layers": 1})
    draft = T5ForConditionalGeneration(config)
    draft.load_state_dict(model.state_dict(), strict=False)
    for part in (draft.encoder, draft.shared):
        part.requires_grad_(False)
    return draft


def train(
    model: T5ForConditionalGeneration, tokenizer: Any, stories: Sequence[str], seconds: float
) -> T5ForConditionalGeneration:
    """Return the model after `seconds` of CPU time."""
    choice, losses = random.Random(0), list[float]()
    others = " ".join(stories[:200]).split()
    model.train()
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    began = time.process_time()
    while (done := (time.process_time() - began) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (len(losses) + 1) / WARM_UP) * (1 - 0.95 * done)
        words = choice.randint(SHORTEST, round(SHORTEST + (LONGEST - SHORTEST) * min(1, 1.5 * done)))
        pairs = [draw_pair(stories, tokenizer, choice, others, words) for _ in range(WORDS // words)]
        sources, targets = zip(*pairs, strict=True)
        ids, labels = _padded(sources, tokenizer.pad_token_id), _padded(targets, -100)
        loss = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % 100 == 0:
            print(f"step {len(losses)}, {done:.0%}: loss {np.mean(losses[-100:]):.3f}", flush=True)
    return model.eval()


def train_heads(
    model: Any, tokenizer: Any, stories: Sequence[str], out: Path, minutes: float, kinds: Sequence[str]
) -> None:
    """Train a head of each kind for some minutes on noised passages and what the model writes for them."""
    choice, others = random.Random(2), " ".join(stories[:200]).split()
    drawn = (choice.randint(LONGEST // 2, LONGEST) for _ in range(PAIRS))
    sources = [draw_pair(stories, tokenizer, choice, others, words)[0] for words in drawn]
    identity = identify(model, tokenizer, name="T5 for stories", source="model")
    settings = WritingSettings(texts=PAIRS, rows=ROWS, new_tokens=NEW_TOKENS, temperatures=LEARNED)
    began = time.process_time()
    write_texts(model, sources, out / "texts", settings, identity)
    print(f"{PAIRS} texts written in {time.process_time() - began:.0f} s of CPU time", flush=True)
    data = read_data([out / "texts"], tokenizer, identity, start=decoder_start(model))
    for name in kinds:
        options, chosen = HEADS[name]
        kind = find_kind(name)
        own: dict[str, Any] = {"loss": kind.loss, "depth": kind.depth, "decay": kind.decay, "lr": RATE}
        asked = TrainSettings(minutes=minutes, **(own | chosen))
        record = train_head(kind, model, data, identity, asked, Files(out=out / name, options=options))
        print(name, None if record is None else (record["steps"], record["best"]), flush=True)


def _padded(rows: Sequence[list[int]], pad: int) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad)


def measure(
    model: Any,
    tokenizer: Any,
    stories: Sequence[str],
    count: int,
    systems: Mapping[str, tuple[str, bool]],
    draft: Any = None,
    heads: Path | None = None,
) -> dict[str, Any]:
    """Return tokens per round, CPU time relative to plain decoding, and identity for each system and temperature."""
    choice = random.Random(1)
    others = " ".join(stories[:200]).split()
    pairs = [draw_pair(stories, tokenizer, choice, others, LONGEST) for _ in range(count + 1)]
    plain = Speculator.from_transformers(model, method="none")
    rows = list[dict[str, Any]]()
    for temperature in TEMPERATURES:
        for name, (method, nodes) in ({} if draft is None else DRAFTED).items():
            speculator = Speculator.from_transformers(
                model, method=method, draft_model=draft, verifier="sample-then-follow", nodes=nodes
            )
            rows.append({"system": name, "temperature": temperature, **compare(plain, speculator, pairs, temperature)})
            print(rows[-1], flush=True)
        for name, (method, nodes, chosen) in ({} if heads is None else HEADED).items():
            assert heads is not None
            head = heads / ("specdec" if method == "mix-head" else method)
            speculator = Speculator.from_transformers(
                model, method=method, head=str(head), nodes=nodes, settings=chosen
            )
            rows.append({"system": name, "temperature": temperature, **compare(plain, speculator, pairs, temperature)})
            print(rows[-1], flush=True)
        for name, (method, chains) in systems.items():
            speculator = Speculator.from_transformers(model, method=method)
            if chains:
                speculator.drafter = Chains(speculator.drafter)
            rows.append({"system": name, "temperature": temperature, **compare(plain, speculator, pairs, temperature)})
            print(rows[-1], flush=True)
    sizes: dict[str, Any] = {
        "d_model": model.config.d_model,
        "encoder": len(model.encoder.block),
        "decoder": len(model.decoder.block),
    }
    if draft is not None:
        shared = same_weights(model.get_encoder(), draft.get_encoder())
        sizes |= {"draft_decoder": len(draft.decoder.block), "shared_encoder": shared}
    if heads is not None:
        kept = ("parameters", "steps", "seconds", "best")
        figures = {name: json.loads((heads / name / "training.json").read_text("utf-8")) for name in HEADS}
        sizes["heads"] = {name: {key: figure[key] for key in kept} for name, figure in figures.items()}
    return {"model": sizes, "noise": NOISE, "words": LONGEST, "rows": rows, "environment": environment()}


def compare(
    plain: Speculator, other: Speculator, pairs: Sequence[tuple[list[int], list[int]]], temperature: float
) -> dict[str, Any]:
    """Compare two systems on sources, alternating which goes first; the first source is warm-up."""
    seconds, rounds, made, same, right = [0.0, 0.0], 0, 0, 0, 0.0
    for place, (source, target) in enumerate(pairs):
        results: dict[bool, Any] = {}
        for drafting in (place % 2 == 0, place % 2 == 1):
            began = time.process_time()
            results[drafting] = (other if drafting else plain).generate(
                source, max_new_tokens=2 * len(target), temperature=temperature, seed=place
            )
            seconds[drafting] += (time.process_time() - began) * bool(place)
        if not place:
            continue
        text = results[False].ids
        same += results[True].ids == text
        rounds += results[True].stats.rounds
        made += len(text) - 1
        right += difflib.SequenceMatcher(None, text, target, autojunk=False).ratio()
    requests = len(pairs) - 1
    return {
        "mat": made / rounds,
        "speedup": seconds[0] / seconds[1],
        "identical": same,
        "requests": requests,
        "tokens": made + requests,
        "like_the_original": right / requests,
    }


class Chains(Drafter):
    """A drafter of which only chains are requested."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner

    @property
    def needs(self) -> RequestedOutputs:
        return self._inner.needs

    def open(self, start: SessionRequest) -> Session:
        return _ChainSession(self._inner.open(start))


class _ChainSession(WrappedSession):
    def propose(self, budget: Budget) -> DraftTree:
        return self.inner.propose(replace(budget, trees=False))


if __name__ == "__main__":
    main()
