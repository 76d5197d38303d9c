"""Finds the layers for `layer-skip` to skip, by Bayesian search on a few prompts.

Zhang et al., ACL 2024, arXiv 2309.08168, section 3.2, search for the layers that maximise tokens per second, by
decoding a few prompts with every candidate. Here each prompt is decoded once, greedily; a candidate's acceptance is the
share of these tokens that it predicts, from one pass over each text, and its speed follows from its acceptance and the
share of the weights that it reads. So a candidate takes one pass per prompt, and results are reproducible. Sets are
proposed by optuna's tree-structured Parzen estimator instead of the paper's Gaussian process. Install optuna with `pip
install 'speculant[search]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from speculant.api.requests import Prompt
from speculant.api.result import Stream
from speculant.api.speculator import Speculator
from speculant.core.engine import TargetCache
from speculant.core.errors import UsageError
from speculant.core.packages import check_packages
from speculant.drafters.layers.subsets import Layers, check_layers, every_other, without
from speculant.engines.hf.probe.capabilities import optional_layers
from speculant.engines.hf.quantized.model_weights import count_weights
from speculant.engines.hf.views.model_view import find_layers

LONGEST = 12  # maximum tokens of a draft, as in `layer-skip`


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLayers:
    """The best set of layers found.

    Attributes:
        skipped: the skipped layers, counted from 0.
        acceptance: share of greedy tokens that the other layers predict.
        cost: cost of a drafted token, in passes of all layers.
        length: tokens per draft with the highest speed.
        speed: expected speed relative to plain decoding; see `expected_speed`.
        trials: number of sets tried.
    """

    skipped: Layers
    acceptance: float
    cost: float
    length: int
    speed: float
    trials: int

    @property
    def setting(self) -> str:
        """The value of the setting `skipped` of `layer-skip`."""
        return ",".join(map(str, self.skipped))


def search_skipped_layers(
    speculator: Speculator,
    prompts: Iterable[Prompt],
    *,
    tokens: int = 64,
    trials: int = 200,
    seed: int = 0,
    advance: Callable[[], object] = lambda: None,
) -> SkippedLayers:
    """Return the set of layers without which the target is expected to draft fastest.

    Args:
        speculator: a speculator of the target, with any method, such as 'none'.
        prompts: a few typical ones, each as in `Speculator.stream`.
        tokens: number of tokens to decode for each prompt.
        trials: number of sets to try; the first one is every other layer.
        seed: seed of the search.
        advance: called after each trial.

    Raises:
        UnsupportedError: optuna is not installed, or layers of the model cannot be skipped.
        UsageError: the texts are too short, or there are no trials.
    """
    check_packages(["optuna"], what="the search of layers to skip", extra="search")
    if trials < 1:
        raise UsageError(f"trials must be at least 1, not {trials}.")
    count = check_layers(optional_layers(speculator.model))
    texts = [text for prompt in prompts if len((text := _decoded(speculator, prompt, tokens))[1]) > 1]
    if not texts:
        raise UsageError("the prompts give no text of two tokens or more; name prompts that the model continues.")
    shares, found = layer_shares(speculator.model), dict[Layers, SkippedLayers]()

    def objective(trial: Any) -> float:
        chosen = (trial.suggest_categorical(f"skip {index}", [False, True]) for index in range(count))
        skipped = tuple(index for index, skip in enumerate(chosen) if skip)
        advance()
        if len(skipped) == count:
            return 0.0
        if skipped not in found:
            acceptance = _acceptance(texts, without(skipped, count))
            cost = 1 - sum(shares[index] for index in skipped)
            speed, length = max((expected_speed(acceptance, cost, n), -n) for n in range(1, LONGEST + 1))
            found[skipped] = SkippedLayers(
                skipped=skipped, acceptance=acceptance, cost=cost, length=-length, speed=speed, trials=trials
            )
        return found[skipped].speed

    _optimize(objective, {f"skip {index}": index in every_other(count) for index in range(count)}, trials, seed)
    return max((each for each in found.values() if each.skipped), key=lambda each: each.speed)


def expected_speed(acceptance: float, cost: float, length: int) -> float:
    """Return the speed relative to plain decoding (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8).

    A round yields 1 + a + ... + a^n tokens in the time of one pass of all layers and n of the subset.

    Args:
        acceptance: acceptance rate a of each token.
        cost: cost of a drafted token, in passes of all layers.
        length: number of tokens n per draft.
    """
    return sum(acceptance**i for i in range(length + 1)) / (1 + length * cost)


def layer_shares(model: Any) -> list[float]:
    """Return each decoder layer's share of the weights that a pass reads: all layers and the output head."""
    place = find_layers(model)
    assert place is not None  # its layers can be skipped
    head = model.get_output_embeddings()
    sizes = [count_weights(layer) for layer in place.layers]
    total = sum(sizes) + (0 if head is None else count_weights(head))
    return [size / total for size in sizes]


def _decoded(speculator: Speculator, prompt: Prompt, tokens: int) -> tuple[TargetCache, list[int]]:
    """Decode a text greedily; return its cache, which excludes the last token, and the tokens."""
    generation = speculator.prepare(prompt, max_new_tokens=tokens, temperature=0)
    for _ in Stream(generation, speculator.parts()):
        pass
    return generation.sequence.cache, list(generation.sequence.sampler.tokens)


def _acceptance(texts: list[tuple[TargetCache, list[int]]], layers: Layers) -> float:
    """Return the share of tokens, excluding the first of each text, that the layers predict."""
    matched = drafted = 0
    for cache, tokens in texts:
        predicted = cache.reread(len(tokens) - 1, layers).logits.argmax(-1).tolist()
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
