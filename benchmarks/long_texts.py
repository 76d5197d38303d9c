"""Compare whole texts of every architecture that supports drafts with `model.generate`, in the most error-prone cases.

Prompts of 1 to 300 tokens, greedy and sampled with a seed; batches of 8 with prompts of all these lengths; texts that
end inside a draft; a second turn on a kept cache; requests after an interrupted one. Models are tiny and random, like
those of `benchmarks/architectures.py`; drafts are random trees of right and wrong guesses.

    python benchmarks/long_texts.py                     every architecture without a result yet
    python benchmarks/long_texts.py qwen3_5 jamba       these, even if they have results
    python benchmarks/long_texts.py --report            totals and differences
"""

from __future__ import annotations

import argparse
import contextlib
import json
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from architecture_matrix.catalogue import build
from architecture_matrix.compare import GREEDY, SAMPLED, Guesses, random_prompt, write_drafted, write_plain
from speculant import Speculator
from speculant.core.drafter import Session, SessionRequest
from speculant.core.errors import SpeculantError
from speculant.engines.hf.probe.tiny import quiet

RESULTS = Path(__file__).parent / "results"
LENGTHS = (1, 60, 170, 300)
BATCH = (1, 2, 9, 30, 77, 150, 221, 300)
NEW = 16
# After a one-token prompt, its own text depends on the previous text, whose states are still on its modules.
STATES_STAY = ("recurrent_gemma",)
POSITIONS = 384  # enough for prompts of 300 tokens; every other limit stays at a few tokens

Compared = tuple[str, list[int], list[int]]  # label, our text, text of `generate`


class Interrupted(Guesses):
    """Raises KeyboardInterrupt in its third round, as Ctrl-C between a pass and its commit does."""

    def open(self, start: SessionRequest) -> Session:
        session = super().open(start)
        observe, rounds = session.observe, iter(range(3))

        def interrupt(verified: Any) -> None:
            if next(rounds, None) == 2:
                raise KeyboardInterrupt
            observe(verified)

        session.observe = interrupt  # type: ignore[method-assign]
        return session


def examine(name: str) -> dict[str, Any]:
    """Return the number of compared texts, the differences, and what the model does not support."""
    record: dict[str, Any] = {"comparisons": 0, "different": [], "refused": []}
    with quiet():
        speculator = _open(name)
        for part in (_alone, _ends, _batch, _padded_rows, _second_turn, _behind_an_interrupt):
            try:
                for kind, found, expected in part(speculator):
                    if name in STATES_STAY and kind.endswith(", 1"):
                        continue
                    record["comparisons"] += 1
                    if found != expected:
                        record["different"].append(kind)
            except SpeculantError as error:
                record["refused"].append(str(error))
    record["verdict"] = "trees" if speculator.engine.capabilities.trees else "chains"
    return record


def _open(name: str) -> Speculator:
    """Return a speculator of a tiny model, with sdpa if the class has it and drafts are exact with it, else eager."""
    for attention in ("sdpa", "eager"):
        with contextlib.suppress(ValueError):  # a class without sdpa
            model = build(name, attention, positions=POSITIONS)
            speculator = Speculator.from_transformers(model, method="none", nodes=12, fast=False)
            speculator.engine.probe()
            if not speculator.engine.capabilities.refusal:
                break
    return speculator


def _alone(speculator: Speculator) -> Iterator[Compared]:
    for length in LENGTHS:
        for kind, options in (("greedy", GREEDY), ("sampled", SAMPLED)):
            expected = write_plain(speculator.model, random_prompt(length), NEW, options)
            found, _ = write_drafted(speculator, random_prompt(length), expected, NEW, options)
            yield f"{kind}, {length}", found, expected


def _ends(speculator: Speculator) -> Iterator[Compared]:
    for length in (9, 77):
        whole = write_plain(speculator.model, random_prompt(length), NEW, GREEDY)
        options = GREEDY | {"eos_token_id": [whole[7], whole[10]]}
        expected = write_plain(speculator.model, random_prompt(length), NEW, options)
        found, _ = write_drafted(speculator, random_prompt(length), whole, NEW, options)
        yield f"end of text, {length}", found, expected


def _batch(speculator: Speculator) -> Iterator[Compared]:
    prompts, texts = _prompts_and_texts(speculator)
    speculator.drafter = Guesses({tuple(each): text for each, text in zip(prompts, texts, strict=True)})
    results = speculator.generate_batch(prompts, size=len(BATCH), max_new_tokens=NEW, temperature=0)
    for length, result, text in zip(BATCH, results, texts, strict=True):
        yield f"batch of 8, {length}", result.ids, text


def _padded_rows(speculator: Speculator) -> Iterator[Compared]:
    """Yield each row of a batch, and the text of a separate `generate` call with the row's padding."""
    prompts, texts = _prompts_and_texts(speculator)
    ids, mask = _padded(prompts)
    guesses = {tuple(each): text for each, text in zip(prompts, texts, strict=True)}
    # Some models also read padding, so that their prompts begin with it.
    speculator.drafter = Guesses(guesses | {tuple(row.tolist()): text for row, text in zip(ids, texts, strict=True)})
    model, settings = speculator.model, {"max_new_tokens": NEW, **GREEDY}
    rows = model.generate(ids, attention_mask=mask, custom_generate=speculator, **settings)
    for place, length in enumerate(BATCH):
        own = slice(place, place + 1)
        text = model.generate(ids[own], attention_mask=mask[own], **settings)
        yield f"padded, {length}", rows[place].tolist(), text[0].tolist()


def _prompts_and_texts(speculator: Speculator) -> tuple[list[list[int]], list[list[int]]]:
    prompts = [random_prompt(length) for length in BATCH]
    return prompts, [write_plain(speculator.model, each, NEW, GREEDY) for each in prompts]


def _padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left-padded prompts and their mask."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(each)) + each for each in prompts])
    return ids, torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])


def _second_turn(speculator: Speculator) -> Iterator[Compared]:
    """Yield our text for a prompt that continues the text of a kept cache, and that of `generate`.

    `generate` may write one text when it continues the cache of its own first turn and another when it reads the whole
    prompt; then ours may equal either. In some classes one-token passes leave other states than a pass over a prompt,
    beyond rounding (in Nemotron-H, by 0.05 in a logit).
    """
    model, first = speculator.model, random_prompt(40)
    text = write_plain(model, first, 9, GREEDY)
    speculator.drafter = Guesses({tuple(first): text})
    cache = speculator.generate(first, max_new_tokens=9, temperature=0).cache
    second = [*first, *text, *random_prompt(23)]
    expected = write_plain(model, second, NEW, GREEDY)
    speculator.drafter = Guesses({tuple(second): expected})
    found = speculator.generate(second, cache=cache, max_new_tokens=NEW, temperature=0).ids
    if found != expected:
        settings: dict[str, Any] = {"max_new_tokens": NEW, "return_dict_in_generate": True, **GREEDY}
        with contextlib.suppress(Exception):  # a class that does not accept the cache of an earlier turn
            own = model.generate(torch.tensor([first]), **settings | {"max_new_tokens": 9}).past_key_values
            continued = model.generate(torch.tensor([second]), past_key_values=own, **settings)
            expected = continued.sequences[0, len(second) :].tolist()
    yield "second turn", found, expected


def _behind_an_interrupt(speculator: Speculator) -> Iterator[Compared]:
    """Yield our text after a request that was interrupted in its third round, and that of `generate`."""
    ids = random_prompt(50)
    expected = write_plain(speculator.model, ids, NEW, GREEDY)
    speculator.drafter = Interrupted({tuple(ids): expected})
    with contextlib.suppress(KeyboardInterrupt):
        speculator.generate(ids, max_new_tokens=NEW, temperature=0)
    yield "interrupt", write_drafted(speculator, ids, expected, NEW, GREEDY)[0], expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures; default: all that take drafts and have no result yet")
    parser.add_argument("--json", type=Path, default=RESULTS / "long_texts.json", help="results, which are extended")
    parser.add_argument("--report", action="store_true", help="only print totals and differences")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = json.loads(arguments.json.read_text("utf-8")) if arguments.json.exists() else {}
    found = known.get("architectures", {})
    taken = json.loads((RESULTS / "architectures.json").read_text("utf-8"))["architectures"]
    drafting = [name for name, each in taken.items() if each["verdict"] in ("trees", "chains")]
    for name in [] if arguments.report else arguments.names or [each for each in drafting if each not in found]:
        try:
            found[name] = examine(name)
        except Exception as error:  # any error a class raises at these lengths, even in its own generate
            found[name] = {"comparisons": 0, "failed": f"{type(error).__name__}: {str(error).strip():.160}"}
        print(f"{name}: {found[name]}", flush=True)
        versions = {package: version(package) for package in ("torch", "transformers")}
        result = {"versions": versions, "architectures": dict(sorted(found.items()))}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    texts = sum(each["comparisons"] for each in found.values())
    different = {name: each["different"] for name, each in found.items() if each.get("different")}
    print(f"{texts} texts of {len(found)} architectures; different: {different or 'none'}")


if __name__ == "__main__":
    main()
