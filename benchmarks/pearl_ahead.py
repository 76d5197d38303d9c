"""How often `pearl` uses the tokens it drafted ahead, and the gain: the bundled model and its draft model, sampled.

    OMP_NUM_THREADS=1 python benchmarks/pearl_ahead.py -o benchmarks/results/pearl-ahead.json

`kept` is the share of rounds with a fully accepted draft that kept tokens drafted ahead for the next round. Texts are
those of the bundled model at temperature 1, with fixed sizes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from speculant import Speculator
from speculant.core.drafter import Verified
from speculant.drafters.models.pearl import PearlSession

OPENINGS = ("Once upon a time", "One day, a little", "Tom and Lily", "There was a big", "The cat", "In the park")
TOKENS = 200


def measure(temperature: float, texts: int, ahead: int | None, nodes: int) -> dict[str, float]:
    """Return the counts of `pearl` over `texts` texts."""
    counts = {"whole": 0, "kept": 0, "further": 0}
    observe = PearlSession.observe

    def counted(session: PearlSession, verified: Verified) -> None:
        observe(session, verified)
        if len(verified.tree) and len(verified.path) == len(verified.tree):
            counts["whole"] += 1
            counts["kept"] += bool(session._ready)
            counts["further"] += len(session._ready)

    settings = {} if ahead is None else {"ahead": ahead}
    speculator = Speculator.from_pretrained(None, method="pearl", nodes=nodes, settings=settings)
    PearlSession.observe = counted  # type: ignore[method-assign, assignment]
    tokens = rounds = 0
    for number in range(texts):
        prompt = OPENINGS[number % len(OPENINGS)]
        result = speculator.generate(prompt, max_new_tokens=TOKENS, temperature=temperature, seed=number)
        tokens, rounds = tokens + len(result.ids) - 1, rounds + result.stats.rounds
    PearlSession.observe = observe  # type: ignore[method-assign]
    return {
        "texts": texts,
        "rounds": rounds,
        "accepted_whole": counts["whole"],
        "kept": counts["kept"] / max(1, counts["whole"]),
        "tokens_ahead": counts["further"] / max(1, counts["kept"]),
        "mat": tokens / max(1, rounds),
    }


def main() -> None:
    """Run the measurements and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=30)
    parser.add_argument("--ahead", type=int, help="tokens drafted ahead; default: as many as fit into a pass")
    parser.add_argument("--nodes", type=int, default=8)
    given = parser.parse_args()
    found = {
        f"temperature {temperature:g}": measure(temperature, given.texts, given.ahead, given.nodes)
        for temperature in (0.0, 1.0)
    }
    settings = {"texts": given.texts, "tokens": TOKENS, "ahead": given.ahead, "nodes": given.nodes}
    given.out.write_text(json.dumps({"settings": settings, "results": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
