"""Transcription with drafts at the cost of real shapes: Whisper with random weights, forced along texts of one domain.

Every pass is the model's; only the next token comes from a text, so weights may be random and the acceptance is that of
the text. `transcribe` cuts held-out text of a domain into windows of 30 seconds of speech and decodes each by Whisper's
own `generate`: without drafts, and with `mix` whose memory is empty at first or has seen transcripts of the domain. The
systems take turns, window by window, in one process. No Whisper tokenizer is at hand: ids are those of Llama 2's, whose
32,000 tokens fit into the vocabulary.

A draft model's acceptance would be meaningless under random weights. `passes` measures what its passes and the target's
cost, and states the acceptance from which it pays: a distilled decoder of two layers that shares the encoder's states.
`draft_models` decodes with such models, whose next token is the text's at a set rate: one with the target's encoder, as
distil-whisper's, whose states are shared, and one of the shape tiny with an encoder of its own.

    OMP_NUM_THREADS=1 python benchmarks/whisper.py -o benchmarks/results/whisper.json
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor, WhisperConfig, WhisperForConditionalGeneration
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from mix_corpora import llama2_encoder
from speculant import Speculator
from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import Recording
from speculant.bench.systems.forced import NoLogitsDrafter
from speculant.cli.env import environment

SHAPES = {  # d_model, encoder layers, decoder layers, heads; those of openai/whisper-tiny and -small
    "tiny": (384, 4, 4, 6),
    "small": (768, 12, 12, 12),
}
VOCABULARY, END, START, NO_TIMES = 51_865, 50_257, 50_258, 50_363
DRAFT_LAYERS = 2  # as in distil-whisper (Gandhi et al. 2023, arXiv 2311.00430)
WORDS = 75  # of a window of 30 s, at 150 words per minute
TEXTS = {"novels read aloud": "prose/sherlock.txt", "stories told": "tinystories/heldout.txt"}
HELD_OUT = 0.15
LONGEST = 8  # tokens of a draft model's chain
ACCEPTANCES = (0.7, 0.8, 0.9, 1.0)
AGREEMENTS = (0.8, 0.9, 1.0)  # rates at which a draft model's next token is the text's
DRAFTED_WINDOWS = {"tiny": 6, "small": 3}  # besides the first, which warms up


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=12, help="windows of each domain")
    parser.add_argument("--seen", type=int, default=60_000, help="words of the domain that the memory has seen")
    parser.add_argument("--turns", type=int, default=15, help="repetitions of each pass")
    parser.add_argument(
        "--only",
        choices=("passes", "transcribe", "draft_models"),
        help="measure one part, and keep the others' results",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = Path(os.environ["SPECULANT_DATA"])
    encode = llama2_encoder(data / "tokenizers/llama2-32k.model")
    found: dict[str, Any] = json.loads(arguments.out.read_text("utf-8")) if arguments.out.exists() else {}
    found["environment"] = environment()
    if arguments.only in (None, "passes"):
        found["passes"] = {name: passes(build(name), arguments.turns) for name in SHAPES}
    if arguments.only in (None, "draft_models"):
        story = (data / "text" / TEXTS["stories told"]).read_text("utf-8")
        found["draft_models"] = {
            name: draft_models(name, held_out(encode, story, windows)) for name, windows in DRAFTED_WINDOWS.items()
        }
    if arguments.only in (None, "transcribe"):
        found |= {"words_per_window": WORDS, "seen_words": arguments.seen, "transcribe": {}}
        model = build("tiny")
        for name, path in TEXTS.items():
            text = (data / "text" / path).read_text("utf-8")
            found["transcribe"][name] = transcribe(model, encode, text, arguments.windows, arguments.seen)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def build(name: str) -> Any:
    """Return a model of a shape, with random weights."""
    torch.manual_seed(0)
    width, encoder, decoder, heads = SHAPES[name]
    tokens = {"pad_token_id": END, "bos_token_id": END, "eos_token_id": END, "decoder_start_token_id": START}
    config = WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=width,
        encoder_layers=encoder,
        decoder_layers=decoder,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        **tokens,
    )
    config.suppress_tokens = config.begin_suppress_tokens = None
    model = WhisperForConditionalGeneration(config).eval()
    model.generation_config = GenerationConfig(
        **tokens, no_timestamps_token_id=NO_TIMES, max_length=448, is_multilingual=False, return_timestamps=False
    )
    return model


class Forcing(LogitsProcessor):  # type: ignore[misc]
    """Allows only the next token of a text, then the end."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text, self._first = [*text, END], -1

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Mask the scores [1, V]; the first call shows how many tokens precede the text."""
        if self._first < 0:
            self._first = input_ids.shape[1]
        token = self._text[min(input_ids.shape[1] - self._first, len(self._text) - 1)]
        masked = torch.full_like(scores, -torch.inf)
        masked[:, token] = 0.0
        return masked


def transcribe(
    model: Any, encode: Callable[[str], Sequence[int]], text: str, windows: int, seen: int
) -> list[dict[str, Any]]:
    """Return CPU times and tokens per pass for each system, over windows of a domain's held-out end."""
    words, held = text.replace("<|endoftext|>", " ").split(), held_out(encode, text, windows)
    border = int(len(words) * (1 - HELD_OUT))
    earlier = [" ".join(words[start : start + WORDS]) for start in range(max(0, border - seen), border, WORDS)]
    first = np.array([START, NO_TIMES], np.int32)
    before = [Recording(first, np.array(encode(each), np.int32)) for each in earlier]
    features = torch.randn(1, model.config.num_mel_bins, 2 * model.config.max_source_positions)
    systems = {
        "no drafts": Speculator.from_transformers(model, method="none"),
        "mix, empty at first": Speculator.from_transformers(model, method="mix"),
        "mix, transcripts seen": Speculator.from_transformers(model, method="mix"),
    }
    for name, system in systems.items():
        if name == "mix, transcripts seen":
            replay(system.drafter, before, nodes=16)
        if name.startswith("mix"):
            system.drafter = NoLogitsDrafter(system.drafter)
    names = ("transformers", *systems)
    seconds, rounds, tokens, encoding = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0), 0, 0.0
    for place, ids in enumerate(held):  # the first one is for warming up
        for name in names if place % 2 else names[::-1]:
            chosen = systems.get(name)
            began = time.process_time()
            output = model.generate(input_features=features, logits_processor=[Forcing(ids)], custom_generate=chosen)
            spent = time.process_time() - began
            assert [token for token in output[0].tolist() if token < END] == ids, name
            if place:
                seconds[name] += spent
                stats = None if chosen is None else chosen.last_stats
                rounds[name] += len(ids) + 1 if stats is None else stats.rounds
        if place:
            tokens += len(ids) + 1
            began = time.process_time()
            with torch.inference_mode():
                model.get_encoder()(features)
            encoding += time.process_time() - began
    plain = seconds["no drafts"]
    return [
        {
            "system": name,
            "tokens": tokens,
            "mat": tokens / rounds[name],
            "tokens_per_cpu_second": tokens / seconds[name],
            "speedup": plain / seconds[name],
            "speedup_of_decoder": (plain - encoding) / (seconds[name] - encoding),
        }
        for name in names
    ]


def held_out(encode: Callable[[str], Sequence[int]], text: str, windows: int) -> list[list[int]]:
    """Return the tokens of windows of a domain's held-out end, and of one more to warm up."""
    words = text.replace("<|endoftext|>", " ").split()
    cut = [words[start : start + WORDS] for start in range(int(len(words) * (1 - HELD_OUT)), len(words) - WORDS, WORDS)]
    return [[*encode(" ".join(each))] for each in cut[:: max(1, len(cut) // (windows + 1))][: windows + 1]]


class AgreeingWhisper(WhisperForConditionalGeneration):  # type: ignore[misc]
    """A draft model at its real cost, whose most probable next token is a text's at a set rate.

    Attributes:
        text: the text.
        rate: how often they agree, at random positions.
        first: number of tokens in front of the text.
    """

    text: Sequence[int] = ()
    rate = 1.0
    first = 2

    @wraps(WhisperForConditionalGeneration.forward)
    def forward(self, *args: Any, **options: Any) -> Any:
        """Run the pass, then put the text's next token, or another, before all others."""
        positions, cache = options.get("decoder_position_ids"), options.get("past_key_values")
        before = 0 if cache is None else cache.get_seq_length()
        output = super().forward(*args, **options)
        rows = options["decoder_input_ids"].shape[1]
        places = [*range(before, before + rows)] if positions is None else positions[0].tolist()
        output.logits = torch.zeros_like(output.logits)
        for row, place in enumerate(places[-output.logits.shape[1] :]):
            known, agrees = [*self.text, END], np.random.default_rng(place).random() < self.rate
            token = known[min(max(0, place + 1 - self.first), len(known) - 1)]
            output.logits[0, row, token if agrees else (token + 1) % END] = 20.0
        return output


def draft_models(name: str, held: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return CPU times and tokens per pass without and with draft models of set agreement, over windows."""
    model = build(name)
    distilled = WhisperConfig.from_dict({**model.config.to_dict(), "decoder_layers": DRAFT_LAYERS})
    drafts = {"shared encoder": AgreeingWhisper(distilled).eval()}
    drafts["shared encoder"].model.encoder.load_state_dict(model.model.encoder.state_dict())
    drafts["own encoder, of tiny"] = AgreeingWhisper(build("tiny").config).eval()
    encodings = dict.fromkeys(drafts, 0)

    def count(key: str) -> Callable[..., None]:
        def counted(*_: Any) -> None:
            encodings[key] += 1

        return counted

    for key, draft in drafts.items():
        draft.generation_config = model.generation_config
        draft.get_encoder().register_forward_hook(count(key))
    systems: dict[tuple[str, float], Any] = {("no drafts", 0.0): Speculator.from_transformers(model, method="none")}
    for key, draft in drafts.items():
        for rate in AGREEMENTS:
            systems[key, rate] = Speculator.from_transformers(model, method="draft-model", draft_model=draft)
    seconds, rounds, tokens = dict.fromkeys(systems, 0.0), dict.fromkeys(systems, 0), 0
    for place, ids in enumerate(held):
        features = torch.randn(1, model.config.num_mel_bins, 2 * model.config.max_source_positions)
        for draft in drafts.values():
            draft.text = ids
        for (key, rate), system in [*systems.items()][:: 1 if place % 2 else -1]:
            if key in drafts:
                drafts[key].rate = rate
            forcing, decode = [Forcing(ids)], system.bind(source={"input_features": features})
            began = time.process_time()
            output = model.generate(input_features=features, logits_processor=forcing, custom_generate=decode)
            spent = time.process_time() - began
            assert [token for token in output[0].tolist() if token < END] == ids, key
            if place:
                seconds[key, rate] += spent
                rounds[key, rate] += system.last_stats.rounds
        tokens += (len(ids) + 1) * bool(place)
    plain, windows, encoded = seconds["no drafts", 0.0], len(held) - 1, dict(encodings)
    encoding = encoder_seconds(model, features)
    return {
        "windows": windows,
        "tokens": tokens,
        "encoder_seconds": {
            "target": encoding,
            "tiny": encoder_seconds(drafts["own encoder, of tiny"], features),
        },
        "encodings_of_draft_models": encoded,
        "systems": [
            {
                "draft_model": key,
                "agreement": rate,
                "mat": tokens / rounds[key, rate],
                "tokens_per_cpu_second": tokens / seconds[key, rate],
                "speedup": plain / seconds[key, rate],
                "speedup_without_the_encoder": (plain - windows * encoding) / (seconds[key, rate] - windows * encoding),
            }
            for key, rate in systems
        ],
    }


def encoder_seconds(model: Any, features: torch.Tensor) -> float:
    """Return the CPU time of an encoder's pass over a window: the median of three, after one to warm up."""
    found = list[float]()
    for _ in range(4):
        began = time.process_time()
        with torch.inference_mode():
            model.get_encoder()(features)
        found.append(time.process_time() - began)
    return median(found[1:])


def passes(model: Any, turns: int) -> dict[str, Any]:
    """Return CPU times of the target's and a draft model's passes, and the acceptance from which the latter pays.

    With c the time of a draft pass and v_k that of a target pass over k + 1 rows, both in target passes over one row, a
    chain of k tokens with acceptance a yields (1 - a^(k + 1)) / (1 - a) tokens for k c + v_k (Leviathan et al. 2023,
    arXiv 2211.17192, theorem 3.8).
    """
    config = WhisperConfig.from_dict({**model.config.to_dict(), "decoder_layers": DRAFT_LAYERS})
    draft = WhisperForConditionalGeneration(config).eval()
    states = torch.randn(1, config.max_source_positions, config.d_model)
    target, drafting = Pass(model, states), Pass(draft, states)
    times: dict[str, list[float]] = {"draft": [], **{str(rows): [] for rows in range(1, LONGEST + 2)}}
    for turn in range(turns + 1):
        for name, found in times.items():
            spent = drafting.seconds(1) if name == "draft" else target.seconds(int(name))
            if turn:
                found.append(spent)
    one = median(times["1"])
    cost = median(times["draft"]) / one
    verify = [median(times[str(length + 1)]) / one for length in range(1, LONGEST + 1)]

    def speedup(acceptance: float) -> float:
        gains = (sum(acceptance**place for place in range(length + 1)) for length in range(1, LONGEST + 1))
        return max(gain / (length * cost + verify[length - 1]) for length, gain in enumerate(gains, 1))

    pays = next((acceptance for acceptance in np.linspace(0, 1, 101) if speedup(acceptance) > 1), None)
    return {
        "target_milliseconds": 1000 * one,
        "draft_pass": cost,
        "verifying_pass": dict(zip(map(str, range(1, LONGEST + 1)), verify, strict=True)),
        "speedup_by_acceptance": {str(each): speedup(each) for each in ACCEPTANCES},  # of the best length
        "pays_from_acceptance": None if pays is None else float(pays),
    }


class Pass:
    """Passes of a decoder after 100 tokens of a text, over the states of a window."""

    def __init__(self, model: Any, states: torch.Tensor, before: int = 100) -> None:
        self._model, self._before, self._states = model, before, (states,)
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self._run(before)

    @torch.inference_mode()
    def _run(self, rows: int) -> None:
        ids = torch.arange(rows)[None]
        self._model(decoder_input_ids=ids, encoder_outputs=self._states, past_key_values=self._cache, use_cache=True)

    def seconds(self, rows: int) -> float:
        """Return the CPU time of a pass over some rows, which are then dropped."""
        began = time.process_time()
        self._run(rows)
        spent = time.process_time() - began
        self._cache.self_attention_cache.crop(-rows)
        return spent


if __name__ == "__main__":
    main()
