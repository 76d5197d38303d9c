"""Checks, before the first draft on a model, that drafts leave its logits as they are.

A draft is verified losslessly only if a row's logits depend on nothing but its own tokens and positions. Models break
that in ways that no config says: masks by cache slot, masks chosen by what a pass holds, rotary factors that follow
the longest position of a pass. So the probe compares rounds with trees, with chains and with nothing drafted, all
through the engine's own caches, with the logits that `model.generate` itself works on, over random ids.

Two models are probed. Beyond limits (windows, chunks, rotary limits) long texts on a large model are expensive, and a
limit of 4096 tokens takes as long to reach as it sounds. So these run on a random fp32 model of a few thousand weights
of the same class (see `tiny`), which has one layer of each kind that the config names and limits of a few tokens. The
model itself is probed with one short text, for what the tiny one cannot show: its own weights, dtype, kernels,
quantisation, adapters and code changed after loading. Where no tiny model can be built, a note says what was left out.

The result is kept in the user's cache folder, one file per config, class, attention, dtype, device and versions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from speculant.core.errors import OutOfMemoryError, UnsupportedError
from speculant.core.folders import cache_folder
from speculant.core.tree import ROOT, DraftTree
from speculant.engines.hf.acceleration import Acceleration, NoAcceleration
from speculant.engines.hf.capabilities import TREE_ATTENTION, HFCapabilities, base_model, check_model
from speculant.engines.hf.forward_pass import ModelRunner
from speculant.engines.hf.target_cache import HFTargetCache
from speculant.engines.hf.tiny import tiny_config, tiny_model

EDITION = 1  # of the checks; a result of another edition is not read
TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.3}
_HALF = 1e-2
_FEW = 0.25  # rows of half precision that may differ by more: experts are chosen by near-ties
_NOT_THE_SHAPE = {"_name_or_path", "transformers_version", "architectures"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a probe found.

    Attributes:
        verdict: "trees", "chains" or "refused".
        masked: whether sliding windows apply in masks as the config says; False if the model ignores its window.
        reason: what differed, for those that are not "trees".
        notes: what could not be probed.
    """

    verdict: str
    masked: bool = True
    reason: str = ""
    notes: tuple[str, ...] = ()


def probe_model(model: Any, capabilities: HFCapabilities, acceleration: Acceleration | None = None) -> HFCapabilities:
    """Return the capabilities with what a probe of the model found; it runs once per model shape and versions.

    Args:
        model: a causal LM that `check_model` accepted.
        capabilities: what that returned.
        acceleration: the prepared model; None for its own passes.

    Raises:
        UnsupportedError: the model's output would change even if drafts are chains.
        OutOfMemoryError: the device is full.
    """
    file = _result_file(model, capabilities, acceleration)
    outcome = None if file is None else _read(file)
    if outcome is None:
        outcome = examine(model, capabilities, acceleration)
        if file is not None:
            _write(file, outcome)
    return merge(capabilities, outcome, type(model).__name__)


def merge(capabilities: HFCapabilities, outcome: Outcome, name: str) -> HFCapabilities:
    """Return the capabilities as an outcome leaves them.

    Raises:
        UnsupportedError: it is "refused".
    """
    if outcome.verdict == "refused":
        raise UnsupportedError(f"{name} cannot verify drafts: {outcome.reason}. Use method 'none' or `model.generate`.")
    notes = (*capabilities.notes, *outcome.notes)
    if capabilities.trees and outcome.verdict == "chains":
        notes = (*notes, f"drafts are verified as chains: {outcome.reason}.")
    trees = capabilities.trees and outcome.verdict == "trees"
    return replace(_changed(capabilities, trees, outcome.masked), notes=notes)


def examine(model: Any, capabilities: HFCapabilities, acceleration: Acceleration | None = None) -> Outcome:
    """Probe a tiny model of the same architecture, then the model itself, and return the best verdict for both."""
    notes: tuple[str, ...] = ()
    try:
        tiny, small = _tiny(model, capabilities)
    except Exception as error:  # whatever a class makes of a small config: the model itself can still be probed
        logger.info("no tiny model of %s: %r", type(model).__name__, error)
        tiny, small = None, capabilities
        notes = ("no small model of this architecture could be made, so drafts beyond its limits were not checked.",)
    reason = ""
    for trees, masked in _candidates(small):
        found = ""
        if tiny is not None:
            found = _differs(tiny, _changed(small, trees, masked), LONG_TEXTS)
        found = found or _differs(model, _changed(capabilities, trees, masked), SHORT_TEXTS, acceleration)
        if not found:
            return Outcome(verdict="trees" if trees else "chains", masked=masked, reason=reason, notes=notes)
        reason = reason or found
    return Outcome(verdict="refused", reason=found)


def _changed(capabilities: HFCapabilities, trees: bool, masked: bool) -> HFCapabilities:
    if masked:
        return replace(capabilities, trees=trees)
    return replace(capabilities, trees=trees, window=None, window_by_cache=False)


def _candidates(capabilities: HFCapabilities) -> Iterator[tuple[bool, bool]]:
    """Yield (trees, masked) from what the config promises down to chains that leave the masks to the model."""
    for trees in (True, False) if capabilities.trees else (False,):
        yield trees, True
        if capabilities.window is not None and not capabilities.mixed:
            yield trees, False


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text of random ids: its prompt, read in chunks or at once, and its whole length, in tokens."""

    prompt: int
    length: int
    chunk: int | None = None


LONG_TEXTS = (Text(prompt=4, length=46), Text(prompt=27, length=40, chunk=7))
SHORT_TEXTS = (Text(prompt=8, length=16),)


def _differs(
    model: Any, capabilities: HFCapabilities, texts: Sequence[Text], acceleration: Acceleration | None = None
) -> str:
    """Return where drafted rounds give other logits than `model.generate`, or "" if they do nowhere.

    Raises:
        OutOfMemoryError: the device is full.
    """
    runner = ModelRunner(model, capabilities, NoAcceleration() if acceleration is None else acceleration)
    for text in texts:
        rotary = bool(getattr(model.config, "rope_parameters", None))  # which has no table that a text could leave
        most = text.length if capabilities.positions is None or rotary else min(text.length, capabilities.positions)
        if most < text.prompt + 2:
            continue
        ids = _random_ids(capabilities.vocabulary, most).to(model.device)
        try:
            with torch.no_grad():
                expected = _generate(model, ids, text.prompt)
                ours = _draft(HFTargetCache(runner, ids[:, : text.prompt]), ids, text, capabilities)
        except OutOfMemoryError:
            raise
        except Exception as error:  # whatever a model makes of masks and positions it does not expect
            logger.info("a probe of %s failed", type(model).__name__, exc_info=True)
            return f"a pass over several tokens fails with {type(error).__name__}: {str(error).splitlines()[0]:.200}"
        wrong = _wrong_rows(ours, expected)
        if wrong.numel():
            kind = "tree" if capabilities.trees else "chain"
            position = text.prompt + int(wrong[0]) - 1
            return (
                f"passes over a {kind} of tokens gave other logits than passes over one token, from position "
                f"{position} of a random text on"
            )
    return ""


def _wrong_rows(ours: Tensor, expected: Tensor) -> Tensor:
    """Return which of the K rows differ by more than rounding: Int64[n].

    Args:
        ours, expected: logits [K, V]; differences are counted in standard deviations of a row.
    """
    tolerance = TOLERANCES.get(expected.dtype, TOLERANCES[torch.bfloat16])
    ours, expected = ours.double(), expected.double()
    known = expected.isfinite() & ours.isfinite()
    masked = (expected.isfinite() != ours.isfinite()).any(-1)
    distance = torch.where(known, ours - expected, 0.0).abs().amax(-1)
    spread = torch.where(known, expected, 0.0).std(-1)
    wrong = torch.nonzero(masked | ~(distance <= tolerance * spread)).flatten()
    return wrong[:0] if tolerance > _HALF and len(wrong) <= _FEW * len(ours) else wrong


class _Forced(LogitsProcessor):  # type: ignore[misc]
    """Makes `generate` write a given text: Int64[1, T]."""

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._ids[0, input_ids.shape[1]]] = 0.0
        return forced


def _generate(model: Any, ids: Tensor, prompt: int) -> Tensor:
    """Return the logits [K, V] from which `model.generate` would choose each token behind the prompt."""
    new = ids.shape[1] - prompt
    config = GenerationConfig(
        max_new_tokens=new, do_sample=False, return_dict_in_generate=True, output_logits=True, pad_token_id=0
    )
    given = ids[:, :prompt]
    output = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        generation_config=config,
        logits_processor=LogitsProcessorList([_Forced(ids)]),
    )
    return torch.cat(output.logits)


def _draft(cache: Any, ids: Tensor, text: Text, capabilities: HFCapabilities) -> Tensor:
    """Return the logits [K, V] of the same rows from rounds with trees, chains, wrong drafts and none."""
    tokens = ids[0].tolist()
    read = cache.prefill(text.chunk)
    while read is None:
        read = cache.prefill(text.chunk)
    rows, root, kind = [read.logits[-1:]], text.prompt, 0
    while root < len(tokens) - 1:
        depth = min(3, cache.depth, len(tokens) - 2 - root)
        tree, path = _a_draft(tokens[root + 1 : root + 1 + depth], kind, capabilities)
        parents = np.concatenate([np.array([-1], np.int32), tree.parents + 1]).astype(np.int32)
        written = cache.forward(np.concatenate([np.array([tokens[root]], np.int32), tree.tokens]), parents)
        kept = [0, *(node + 1 for node in path)]
        cache.keep(kept)
        rows.append(written.logits[kept])
        root += len(kept)
        kind += 1
    return torch.cat(rows)


def _a_draft(right: list[int], kind: int, capabilities: HFCapabilities) -> tuple[DraftTree, list[int]]:
    """Return a draft around the right tokens, in kinds that take turns, and the path of its right nodes."""

    def wrong(token: int) -> int:
        return (token + 1) % capabilities.vocabulary

    kinds: list[list[list[int]]] = [[right], [[]], [[*right[:1], *map(wrong, right[1:])]]]
    if capabilities.trees and right:  # what is right comes last, so that no node lies where its depth would put it
        kinds = [[[wrong(right[0])], [*right[:1], *map(wrong, right[1:])], right], *kinds]
    tree = DraftTree.from_paths(kinds[kind % len(kinds)])
    path: list[int] = []
    for token in right:
        following = [node for node in tree.children(path[-1] if path else ROOT) if tree.tokens[node] == token]
        if not following:
            break
        path += following
    return tree, path


def _random_ids(vocabulary: int, count: int) -> Tensor:
    """Return Int64[1, T], without the smallest ids, which often stand for padding and the like."""
    return torch.from_numpy(np.random.default_rng(5).integers(min(3, vocabulary - 2), vocabulary, (1, count)))


def _tiny(model: Any, capabilities: HFCapabilities) -> tuple[Any, HFCapabilities]:
    """Return a tiny random model of the same architecture and what it can do."""
    bare = base_model(model)
    config = tiny_config(bare.config)
    attention = getattr(bare.config, "_attn_implementation", None) or "eager"
    half = attention not in TREE_ATTENTION
    tiny = tiny_model(
        type(bare), config, attention=attention, device=model.device, dtype=model.dtype if half else torch.float32
    )
    return tiny, replace(check_model(tiny), trees=capabilities.trees)


def _result_file(model: Any, capabilities: HFCapabilities, acceleration: Acceleration | None) -> Path | None:
    """Return where the outcome is kept; None where there is no folder for it."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in _NOT_THE_SHAPE}
    kind, device = type(model), model.device
    facts = [
        EDITION,
        config,
        f"{kind.__module__}.{kind.__qualname__}",
        getattr(model.config, "_attn_implementation", None),
        str(model.dtype),
        torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        asdict(capabilities),
        type(acceleration).__name__,
        *(version(name) for name in ("torch", "transformers", "speculant")),
    ]
    identity = json.dumps(facts, sort_keys=True, default=str).encode()
    try:
        return cache_folder() / f"probe-{hashlib.blake2b(identity, digest_size=8).hexdigest()}.json"
    except OSError:
        return None


def _read(path: Path) -> Outcome | None:
    """Return a kept outcome; None where there is none or the file is broken: probing again mends it."""
    try:
        found = json.loads(path.read_text("utf-8"))
        outcome = Outcome(**{**found, "notes": tuple(found["notes"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return outcome if outcome.verdict in ("trees", "chains", "refused") else None


def _write(path: Path, outcome: Outcome) -> None:
    """Keep an outcome, whole or not at all; a folder that cannot be written to costs a probe per process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            json.dump(asdict(outcome), file)
        os.replace(file.name, path)
    except OSError as error:
        logger.info("the probe's result could not be kept: %s", error)
