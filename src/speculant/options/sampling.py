"""How tokens are chosen, when a text ends, and what it must look like."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from speculant.core.errors import UsageError
from speculant.options import kinds, option

_option = partial(option.option, panel="Text")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen and when the text ends, as in `Speculator.stream`.

    Attributes:
        max_new_tokens: maximum number of tokens.
        temperature: 0 for greedy decoding.
        top_p, top_k: what part of the distribution is sampled from; None for all of it.
        seed: seed of the random numbers; None for any.
        stop: texts that end the generation.

    Raises:
        UsageError: an option would have no effect.
    """

    max_new_tokens: int = _option(256, "maximum tokens to generate", kinds.whole(1))
    temperature: float = _option(0.0, "0 for greedy decoding, the default; above 0 to sample", kinds.TEMPERATURE)
    top_p: float | None = _option(
        None, "sample from the most likely tokens with a total probability of P", kinds.FRACTION
    )
    top_k: int | None = _option(None, "sample from the K most likely tokens", kinds.whole(0, metavar="K"))
    seed: int | None = _option(None, "seed, which makes sampling repeatable", kinds.whole(0))
    stop: tuple[str, ...] = _option(
        (),
        "stop at this text; may be repeated",
        kinds.text("every text contains the empty one, so generation would end after one token"),
        several=True,
    )

    def __post_init__(self) -> None:
        if self.temperature:
            return
        given = {"--top-p": self.top_p, "--top-k": self.top_k, "--seed": self.seed}
        ignored = [name for name, value in given.items() if value is not None]
        if ignored:
            names = " and ".join(ignored)
            raise UsageError(
                f"{names} would be ignored: decoding is greedy. Add --temperature 1 to sample, or leave {names} out."
            )

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of `Speculator.stream`."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "stop": list(self.stop) or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintOptions:
    """What the text must look like.

    Attributes:
        json_schema: file of a JSON schema that describes the text.
        regex: regular expression that the whole text matches.
    """

    json_schema: str | None = _option(
        None,
        "make the text JSON that matches the schema in FILE, without whitespace between its parts",
        kinds.name(metavar="FILE"),
    )
    regex: str | None = _option(
        None, "make the whole text match this regular expression", kinds.name(metavar="PATTERN")
    )
