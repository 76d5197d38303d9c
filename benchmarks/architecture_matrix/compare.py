"""What drafted and batched decoding gives on an architecture, compared with `model.generate`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from architecture_matrix.catalogue import build, class_name
from speculant.api.speculator import Speculator
from speculant.core.drafter import Budget, Drafter, Session, SessionRequest, Verified
from speculant.core.engine import RequestedOutputs
from speculant.core.errors import UnsupportedError, UsageError
from speculant.core.tree import DraftTree
from speculant.engines.hf.probe.tiny import VOCABULARY, quiet

ATTENTIONS = ("eager", "sdpa")
TEXTS = ((3, 22), (29, 9))  # tokens of prompts and behind them: across every limit of tiny models, and beyond most
GREEDY: dict[str, Any] = {"do_sample": False}
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_k": 0}


@dataclass(slots=True, kw_only=True)
class Found:
    """What was found of an architecture.

    Attributes:
        name, kind: of the model type and of its class.
        verdict: "trees", "chains", "plain" without drafts, or "not built".
        reason: what keeps it from trees.
        comparisons: texts that were compared with those of `generate`.
        mismatches: which of them differed.
        accepted: drafted tokens that were accepted.
    """

    name: str
    kind: str
    verdict: str = "not built"
    reason: str = ""
    comparisons: int = 0
    mismatches: list[str] = field(default_factory=list)
    accepted: int = 0


def examine(name: str, attentions: Sequence[str] = ATTENTIONS) -> Found:
    """Return what an architecture can do, and how its drafted texts compare with plain ones."""
    found = Found(name=name, kind=class_name(name))
    best = []
    for attention in attentions:
        try:
            model = build(name, attention)
        except Exception as error:  # a class without this attention, or one that needs what is not installed
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0]:.160}"
            best.append(("not built", reason))
            continue
        with quiet():
            best.append(_compare(model, attention, found))
    return summed(found, attentions, best)


def summed(found: Found, attentions: Sequence[str], best: Sequence[tuple[str, str]]) -> Found:
    """Give what was found the best verdict of all attentions, and its reason."""
    order = ["trees", "chains", "plain", "not built"]
    found.verdict, found.reason = min(best, key=lambda each: order.index(each[0]))
    for attention, (verdict, reason) in zip(attentions, best, strict=True):
        if verdict == "plain" and found.verdict != "plain":
            found.reason = f"{found.reason} Plain with {attention} attention: {reason}".strip()
    return found


def _compare(model: Any, attention: str, found: Found) -> tuple[str, str]:
    """Add comparisons with one attention; return the verdict and its reason."""
    try:
        speculator = Speculator.from_transformers(model, method="none", nodes=12, fast=False)
    except (UsageError, UnsupportedError) as error:  # it writes no text
        return "not built", str(error)
    speculator.engine.probe()
    refusal = speculator.engine.capabilities.refusal
    try:
        greedy = [write_plain(model, random_prompt(length), new, GREEDY) for length, new in TEXTS]
    except Exception as error:  # whatever a class raises at these sizes
        failure = f"{type(error).__name__}: {str(error).strip():.120}"
        return "not built", f"Its own `generate` fails at these sizes: {failure}"
    for (length, new), text in zip(TEXTS, greedy, strict=True):
        prompt = random_prompt(length)
        for label, options in (("greedy", GREEDY), ("sampled", SAMPLED)):
            place = f"{attention}, {label}, prompt of {length}"
            try:
                plain = text if options is GREEDY else write_plain(model, prompt, new, options)
                ours, accepted = write_drafted(speculator, prompt, plain, new, options)
            except Exception as error:
                found.mismatches.append(f"{place}: {type(error).__name__}: {str(error).strip():.200}")
                continue
            found.comparisons, found.accepted = found.comparisons + 1, found.accepted + accepted
            if ours != plain:
                first = next((i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b), len(ours))
                found.mismatches.append(f"{place}: from token {first} on")
    _compare_batch(speculator, model, attention, found)
    if refusal:
        return "plain", refusal
    trees = speculator.engine.capabilities.trees
    return ("trees", "") if trees else ("chains", chains_reason(speculator))


def _compare_batch(speculator: Speculator, model: Any, attention: str, found: Found) -> None:
    prompts = [random_prompt(length) for length in (5, 20, 11)]
    try:
        plain = [write_plain(model, prompt, 10, GREEDY) for prompt in prompts]
        speculator.drafter = Guesses({tuple(p): text for p, text in zip(prompts, plain, strict=True)})
        results = speculator.generate_batch(prompts, size=3, max_new_tokens=10, temperature=0)
    except Exception as error:
        found.mismatches.append(f"{attention}, batch: {type(error).__name__}: {str(error).strip():.200}")
        return
    for prompt, text, result in zip(prompts, plain, results, strict=True):
        found.comparisons += 1
        if result.ids != text:
            found.mismatches.append(f"{attention}, batch, prompt of {len(prompt)}")


def write_plain(model: Any, prompt: list[int], new: int, options: dict[str, Any]) -> list[int]:
    """Return the text that `model.generate` writes behind the prompt, with a fixed seed."""
    torch.manual_seed(1)
    ids = torch.tensor([prompt])
    text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **options)
    return text_behind(model, text, prompt)


def text_behind(model: Any, text: torch.Tensor, prompt: list[int]) -> list[int]:
    """Return what was written behind a prompt, or behind the first token where the prompt is the encoder's."""
    found: list[int] = text[0, 1 if model.config.is_encoder_decoder else len(prompt) :].tolist()
    return found


def write_drafted(
    speculator: Speculator, prompt: list[int], text: list[int], new: int, options: dict[str, Any]
) -> tuple[list[int], int]:
    """Return the text behind the prompt, and how many of its tokens were drafted."""
    speculator.drafter = Guesses({tuple(prompt): text})
    torch.manual_seed(1)
    ids = torch.tensor([prompt])
    ours = speculator.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, custom_generate=speculator, **options
    )
    assert speculator.last_stats is not None
    return text_behind(speculator.model, ours, prompt), speculator.last_stats.accepted


def random_prompt(length: int) -> list[int]:
    """Return as many random tokens, the same ones for the same length."""
    return [int(token) for token in np.random.default_rng(length).integers(3, VOCABULARY, length)]


def chains_reason(speculator: Speculator) -> str:
    """Return why drafts are verified as chains; "" where no note says so."""
    return next((note for note in speculator.engine.capabilities.notes if "chains" in note), "")


class Guesses(Drafter):
    """Drafts random trees around texts it knows, so that rounds accept, reject and branch.

    Attributes:
        texts: what follows prompts.
        other: what follows any other prompt.
    """

    def __init__(self, texts: dict[tuple[int, ...], list[int]], other: Sequence[int] = ()) -> None:
        self.texts, self.other = texts, list(other)

    @property
    def needs(self) -> RequestedOutputs:
        return RequestedOutputs()

    def open(self, start: SessionRequest) -> Session:
        return _Guessing(self.texts.get(tuple(start.prompt.tolist()), self.other))


class _Guessing(Session):
    """One request's guesses."""

    def __init__(self, text: list[int]) -> None:
        self._text, self._at, self._random = text, 0, random.Random(len(text))

    def propose(self, budget: Budget) -> DraftTree:
        state = self._random.getstate()
        paths = list(self._paths(1 if not budget.trees else self._random.randint(0, 4)))
        self._random.setstate(state)  # asked again, it answers the same
        return DraftTree.from_paths(paths).within(depth=budget.depth, trees=budget.trees).head(budget.nodes)

    def observe(self, verified: Verified) -> None:
        self._at += len(verified.tokens)
        self._random.random()

    def close(self) -> None:
        pass

    def _paths(self, count: int) -> Iterator[list[int]]:
        for _ in range(count):
            path = self._text[self._at : self._at + self._random.randint(1, 5)]
            if path and self._random.random() < 0.5:
                path[self._random.randrange(len(path))] = self._random.randrange(VOCABULARY)
            yield [*path, self._random.randrange(VOCABULARY)]
