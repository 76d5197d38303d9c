"""Finds what `layer-skip` should skip, by Bayesian search on a few prompts.

Zhang et al., ACL 2024, arXiv 2309.08168, section 3.2, search for the attention and MLP sublayers that maximise tokens
per second, by decoding a few prompts with every candidate. Here each prompt is decoded once, greedily; a candidate's
acceptance is the share of these tokens that it predicts, from one pass over each text, and its speed follows from its
acceptance and the share of the weights that it reads. So a candidate takes one pass per prompt, and results are
reproducible. Whole layers are tried where they cannot be split. Sets are proposed by optuna's tree-structured Parzen
estimator instead of the paper's Gaussian process. Install optuna with `pip install 'speculant[search]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from speculant.api.requests import Prompt
from speculant.api.result import Stream
from speculant.api.speculator import Speculator
from speculant.core.engine import TargetCache
from speculant.core.errors import UsageError
from speculant.core.packages import check_packages
from speculant.core.sublayers import Part, Sublayers
from speculant.drafters.layers.subsets import check_layers, every_other, format_skipped, without
from speculant.engines.hf.probe.class_checks import optional_layers
from speculant.engines.hf.quantized.model_weights import count_weights
from speculant.engines.hf.views.layer_parts import find_layer_parts, whole_layers_reason
from speculant.engines.hf.views.model_view import find_layers
from speculant.engines.hf.views.unwrapping import base_model

LONGEST = 12  # maximum tokens of a draft, as in `layer-skip`


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLayers:
    """The best set found.

    Attributes:
        skipped: the skipped sublayers.
        acceptance: share of greedy tokens that the others predict.
        cost: cost of a drafted token, in passes of all layers.
        length: tokens per draft with the highest speed.
        speed: expected speed relative to plain decoding; see `expected_speed`.
        trials: number of sets tried.
        whole: why only whole layers were tried; "" if attention and MLP were skipped separately.
    """

    skipped: Sublayers
    acceptance: float
    cost: float
    length: int
    speed: float
    trials: int
    whole: str = ""

    @property
    def setting(self) -> str:
        """The value of the setting `skipped` of `layer-skip`."""
        return format_skipped(self.skipped)


def search_skipped_layers(
    speculator: Speculator,
    prompts: Iterable[Prompt],
    *,
    tokens: int = 64,
    trials: int = 200,
    seed: int = 0,
    sublayers: bool = False,
    advance: Callable[[], object] = lambda: None,
) -> SkippedLayers:
    """Return the set of sublayers, or layers, without which the target is expected to draft fastest.

    Args:
        speculator: a speculator of the target, with any method, such as 'none'.
        prompts: a few typical ones, each as in `Speculator.stream`.
        tokens: number of tokens to decode for each prompt.
        trials: number of sets to try; the first one is every other layer.
        seed: seed of the search.
        sublayers: whether attention and MLP are skipped separately, if the model's layers can be split.
        advance: called after each trial.

    Raises:
        UnsupportedError: optuna is not installed, or layers of the model cannot be skipped.
        UsageError: the texts are too short, or there are no trials.
    """
    check_packages(["optuna"], what="the search of layers to skip", extra="search")
    if trials < 1:
        raise UsageError(f"trials must be at least 1, not {trials}.")
    count = check_layers(optional_layers(speculator.model))
    texts = [text for prompt in prompts if len((text := _decode_text(speculator, prompt, tokens))[1]) > 1]
    if not texts:
        raise UsageError("the prompts give no text of two tokens or more; name prompts that the model continues.")
    whole = whole_layers_reason(speculator.model) if sublayers else ""
    split, parts = sublayers and not whole, get_args(Part)
    shares, found = sublayer_shares(speculator.model, split=split), dict[Sublayers, SkippedLayers]()
    names: dict[str, tuple[Part, int]] = {f"skip {index}": ("attention", index) for index in range(count)}
    if split:
        names = {f"skip {part} {index}": (part, index) for index in range(count) for part in parts}

    def objective(trial: Any) -> float:
        chosen = [names[name] for name in names if trial.suggest_categorical(name, [False, True])]
        attention, mlp = (tuple(index for each, index in chosen if each == part) for part in parts)
        skipped = Sublayers(attention, mlp if split else attention)
        advance()
        if skipped == Sublayers.whole(range(count)):
            return 0.0
        if skipped not in found:
            acceptance = _acceptance(texts, without(skipped, count))
            cost = 1 - sum(shares[each] for each in chosen)
            speed, length = max((expected_speed(acceptance, cost, n), -n) for n in range(1, LONGEST + 1))
            found[skipped] = SkippedLayers(
                skipped=skipped,
                acceptance=acceptance,
                cost=cost,
                length=-length,
                speed=speed,
                trials=trials,
                whole=whole,
            )
        return found[skipped].speed

    first = every_other(count).mlp
    _optimize(objective, {name: index in first for name, (_, index) in names.items()}, trials, seed)
    return max((each for each in found.values() if each.skipped.layers), key=lambda each: each.speed)


def expected_speed(acceptance: float, cost: float, length: int) -> float:
    """Return the speed relative to plain decoding (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8).

    A round yields 1 + a + ... + a^n tokens in the time of one pass of all layers and n of the subset.

    Args:
        acceptance: acceptance rate a of each token.
        cost: cost of a drafted token, in passes of all layers.
        length: number of tokens n per draft.
    """
    return sum(acceptance**i for i in range(length + 1)) / (1 + length * cost)


def sublayer_shares(model: Any, *, split: bool = True) -> dict[tuple[Part, int], float]:
    """Return each sublayer's share of the weights that a pass reads: all layers and the output head.

    Args:
        model: the model.
        split: whether its layers can be split; otherwise "attention" stands for a whole layer.
    """
    place = find_layers(model)
    assert place is not None  # its layers can be skipped
    head = model.get_output_embeddings()
    total = sum(map(count_weights, place.layers)) + (0 if head is None else count_weights(head))
    if not split:
        return {("attention", index): count_weights(layer) / total for index, layer in enumerate(place.layers)}
    return {
        (part, index): count_weights(getattr(layer, name)) / total
        for index, (layer, own) in enumerate(zip(place.layers, find_layer_parts(base_model(model)), strict=True))
        for part, name in own.names.items()
    }


def _decode_text(speculator: Speculator, prompt: Prompt, tokens: int) -> tuple[TargetCache, list[int]]:
    """Decode a text greedily; return its cache, which excludes the last token, and the tokens."""
    generation = speculator.prepare(prompt, max_new_tokens=tokens, temperature=0)
    for _ in Stream(generation, speculator.parts()):
        pass
    return generation.sequence.cache, list(generation.sequence.sampler.tokens)


def _acceptance(texts: list[tuple[TargetCache, list[int]]], layers: Sublayers) -> float:
    """Return the share of tokens, excluding the first of each text, that these sublayers predict."""
    matched = drafted = 0
    for cache, tokens in texts:
        predicted = cache.reread(np.array(tokens[:-1], np.int32), layers).logits.argmax(-1).tolist()
        matched += sum(a == b for a, b in zip(predicted, tokens[1:], strict=True))
        drafted += len(predicted)
    return matched / drafted


def _optimize(objective: Callable[[Any], float], first: dict[str, Any], trials: int, seed: int) -> None:
    """Maximise with optuna, which logs only warnings meanwhile."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        study.enqueue_trial(first)
        study.optimize(objective, n_trials=trials)
    finally:
        optuna.logging.set_verbosity(level)
