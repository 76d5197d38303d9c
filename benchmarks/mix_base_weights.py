"""Learn the initial mixing weights used with a base: the tables of mix/base_weights.py and mix/score_weights.py.

Drafters of the four Llama recordings and of Vicuna's Alpaca answers share one set of weights and rates; each has its
own tables and a mixed 64 MB base. They replay the odd requests of all files, interleaved so that no file comes last.
There are two passes; the second starts with empty tables and the weights of the first. Measurements on whole files
(mix_base.py) therefore start with weights that were learned on half of the requests.

    python benchmarks/mix_base_weights.py --llama3 FILE -o src/speculant/drafters/mix/base_weights.py
    python benchmarks/mix_base_weights.py --llama3 FILE --network -o src/speculant/drafters/mix/score_weights.py
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mix_base import BUDGET, NODES, built_base, trained
from mix_corpora import LLAMA3, VOCABULARIES, encoded, excluded, llama2_encoder, llama3_encoder
from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.drafters.mix.arrays import BASE_CONTEXTS, FREQUENCIES, INPUTS, SETS, Mixer
from speculant.drafters.mix.base import MixBase
from speculant.drafters.mix.drafter import MixDrafter
from speculant.drafters.mix.initial import new_mixer

ALPACA = "vicuna-7b-alpaca"
MAX_REQUESTS = 150  # requests per file
PASSES = 2
LATER_STEPS = 3000  # learned tokens that a mixture is credited with at the start of a later pass
FIRST_OF_BASE, FIRST_OF_NETWORK = 0.15, 0.2  # initial weights
Weights = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="the module to write")
    parser.add_argument("--llama3", type=Path, required=True, help="Llama 3's tokenizer.model")
    parser.add_argument("--network", action="store_true", help="bases with a network")
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    encoders = {"llama3": llama3_encoder(args.llama3), "llama2": llama2_encoder(data / "tokenizers/llama2-32k.model")}
    bases: list[MixBase] = []
    played: list[list[Recording]] = []
    with tempfile.TemporaryDirectory() as folder:
        for tokenizer, names in (("llama3", LLAMA3), ("llama2", (ALPACA,))):
            recordings = {name: list(read_recordings(data / "traces" / f"{name}.jsonl")) for name in names}
            corpora = encoded(data, encoders[tokenizer], excluded(recordings))
            path = Path(folder) / tokenizer
            network = trained if args.network else lambda _builder, _maximum: None
            base, _ = built_base(path, corpora, VOCABULARIES[tokenizer], BUDGET, network)
            bases += [base] * len(names)
            played += [recorded[1::2][:MAX_REQUESTS] for recorded in recordings.values()]
        weights = learned(bases, played)
    args.out.write_text(module(weights, network=args.network))


def first_weights(scored: bool) -> Weights:
    """Return initial weights: those of a mixture without a base, and small weights for the inputs that a base adds."""
    weights = new_mixer(1, 1, scored=scored).weights
    weights[:] = 0
    alone = new_mixer(1).weights
    weights[: SETS + FREQUENCIES, :INPUTS] = alone[:, :INPUTS]
    weights[: SETS + FREQUENCIES, -1] = alone[:, -1]
    known = weights[SETS + FREQUENCIES + 1 :]
    known[:, INPUTS : INPUTS + BASE_CONTEXTS] = FIRST_OF_BASE
    if scored:
        weights[SETS + FREQUENCIES :, -2] = FIRST_OF_NETWORK
    return weights


def learned(bases: list[MixBase], played: list[list[Recording]]) -> Weights:
    """Return the weights after all passes."""
    mixer: Mixer | None = None
    for number in range(PASSES):
        drafters = [MixDrafter(vocabulary=base.facts["vocabulary"], bases=[base]) for base in bases]
        if mixer is None:
            mixer = drafters[0]._tables.mixer
            mixer.weights[:] = first_weights(bases[0].scorer is not None)
        else:
            mixer.steps[:] = LATER_STEPS
        for drafter in drafters:
            own = drafter._tables.mixer
            shared = own._replace(weights=mixer.weights, states=mixer.states, steps=mixer.steps)
            drafter._take(drafter._tables._replace(mixer=shared))
        tokens = rounds = 0
        for drafter, recording in in_turns(drafters, played):
            result = replay(drafter, [recording], nodes=NODES)
            tokens, rounds = tokens + result.tokens, rounds + result.rounds
        print(f"pass {number + 1}: MAT {tokens / rounds:.3f}", flush=True)
    assert mixer is not None
    return mixer.weights


def in_turns(drafters: list[MixDrafter], played: list[list[Recording]]) -> Iterable[tuple[MixDrafter, Recording]]:
    """Return requests with their drafters, interleaved evenly from all files."""
    places = [(i / len(file), k, i) for k, file in enumerate(played) for i in range(len(file))]
    return [(drafters[k], played[k][i]) for _, k, i in sorted(places)]


def module(weights: Weights, *, network: bool) -> str:
    """Return the source of a module with these weights."""
    what = "a base with a network" if network else "a base"
    last = "the score of the network and a bias" if network else "and a bias"
    tables = {
        "BY_SUFFIX": ("no known suffix, one for each length, two for repetitions", weights[: SETS // 2]),
        "BY_FREQUENCY": ("of the candidate, as a binary logarithm", weights[SETS : SETS + FREQUENCIES]),
        "BY_BASE_SUFFIX": (
            "none, or the length of the longest suffix of a base",
            weights[SETS + FREQUENCIES :],
        ),
    }
    lines = [
        f'"""Initial mixing weights where there is {what}, learned on half of the development requests.',
        "",
        "Written by benchmarks/mix_base_weights.py. Recordings have no top-k of the target; initial.py has its weight.",
        "",
        "Columns: the thirteen inputs of a mixture without a base (initial.py), the base's rows for suffixes of one to",
        f"four tokens, {last}; in hundredths.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
    ]
    for name, (rows, table) in tables.items():
        lines.append(f"{name} = (  # {rows}")
        lines += [f"    ({', '.join(map(str, row))})," for row in np.rint(100 * table).astype(int).tolist()]
        lines.append(")")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
