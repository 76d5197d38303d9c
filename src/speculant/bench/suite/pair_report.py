"""The report of `speculant check --draft-model`: whether a draft model fits a target, and how well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from speculant.bench.suite.pair_acceptance import PairAcceptance
from speculant.core.errors import SpeculantError
from speculant.drafters.models.pairs import Pair, check_pair
from speculant.engines.hf.quantized.model_weights import count_weights
from speculant.registry import METHODS
from speculant.registry.method import Method

SPECIALS = ("bos", "eos", "pad", "unk")
RELATIONS = {
    "same": "the same",
    "padded": "the same ids, other numbers of tokens",
    "different": "different",
    "unknown": "not compared",
}
MAX_DRAFTED = 16  # maximum tokens per chain, for the estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The relevant properties of one model of a pair.

    Attributes:
        parameters: number of weights.
        vocabulary: number of logits.
        positions: maximum number of tokens; None for no limit.
        dtype, device: dtype and device of the weights.
    """

    parameters: int
    vocabulary: int
    positions: int | None
    dtype: str
    device: str

    @classmethod
    def of(cls, model: Any) -> ModelFacts:
        """Return the facts of a transformers model."""
        config = model.config.get_text_config(decoder=True)
        return cls(
            parameters=count_weights(model),
            vocabulary=config.vocab_size,
            positions=getattr(config, "max_position_embeddings", None),
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(model.device),
        )

    def line(self) -> str:
        """Return the properties as text."""
        count = f"{self.parameters / 1e6:.1f} M" if self.parameters < 1e9 else f"{self.parameters / 1e9:.2f} B"
        positions = "any number of" if self.positions is None else str(self.positions)
        return f"{count} parameters, {self.vocabulary} tokens, {positions} positions, {self.dtype} on {self.device}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairReport:
    """The report on a target and a draft model.

    Attributes:
        target, draft: the models.
        pair: their vocabularies.
        specials: for each role, the target's and the draft model's token; empty if a tokenizer is missing.
        acceptance: measured acceptance; None if the draft model cannot propose tokens of the target.
    """

    target: ModelFacts
    draft: ModelFacts
    pair: Pair
    specials: Mapping[str, tuple[str | None, str | None]]
    acceptance: PairAcceptance | None = None

    @property
    def obstacles(self) -> dict[str, str]:
        """Why methods that need shared tokens ("tokens"), text ("text") or all tokens ("every") cannot be used.

        The text is empty if they can.
        """
        found = {}
        sizes = {"vocabulary": self.target.vocabulary, "draft_vocabulary": self.draft.vocabulary}
        for kind in ("tokens", "text", "every"):
            found[kind] = ""
            try:
                check_pair(self.pair, **sizes, text=kind == "text", every=kind == "every")
            except SpeculantError as error:
                found[kind] = str(error)
        return found

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that can use the pair."""
        obstacles = self.obstacles
        return tuple(
            name for name, method in METHODS.items() if method.takes_draft_model and not obstacles[_find_need(method)]
        )

    @property
    def ratio(self) -> float:
        """The draft model's parameters over the target's."""
        return self.draft.parameters / max(1, self.target.parameters)

    @property
    def speedup(self) -> float | None:
        """The estimated speed-up of the best greedy chain, assuming that pass costs are proportional to parameters.

        Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8: (1 - a^(n + 1)) / ((1 - a) (n c + 1)).
        """
        if self.acceptance is None:
            return None
        a, c = self.acceptance.greedy, self.ratio
        return max(sum(a**i for i in range(n + 1)) / (n * c + 1) for n in range(1, MAX_DRAFTED + 1))

    def verdict(self) -> str:
        """Return whether the pair can be used, and whether a gain is expected."""
        if not self.methods:
            return f"cannot be used: {self.obstacles['tokens']}"
        if self.acceptance is None or self.speedup is None:
            return f"can be used with {' and '.join(self.methods)} only: {self.obstacles['tokens']}"
        promise = f"estimated at best {self.speedup:.2f}x by parameters and greedy agreement"
        return f"can be used; {promise}" + ("." if self.speedup > 1.05 else ": no speed-up expected.")

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        equal = [name for name, (ours, theirs) in self.specials.items() if ours == theirs]
        other = [f"{name} {ours} and {theirs}" for name, (ours, theirs) in self.specials.items() if ours != theirs]
        special = "; ".join(filter(None, [f"equal: {', '.join(equal)}" if equal else "", *other])) or "not compared"
        shared = f" ({self.pair.shared} are shared)" if self.pair.shared else ""
        lines = [
            f"target      {self.target.line()}",
            f"draft       {self.draft.line()}",
            f"ratio       {self.ratio:.1%} of the target's parameters",
            f"vocabulary  {RELATIONS[self.pair.relation]}{shared}",
            f"special     {special}",
            f"methods     {', '.join(self.methods) or 'none'}",
        ]
        if self.draft.positions is not None and self.draft.positions < (self.target.positions or 1 << 60):
            lines.append(f"positions   drafting ends where the draft model has read {self.draft.positions} tokens")
        if self.acceptance is not None:
            a = self.acceptance
            lines.append(
                f"acceptance  {a.sampled:.1%} sampled at temperature 1, {a.greedy:.1%} greedy, over {a.tokens} tokens"
            )
        return [*lines, f"verdict     {self.verdict()}"]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain numbers, texts and lists."""
        shared = None if self.pair.translation is None else self.pair.translation.shared
        return {
            "target": asdict(self.target),
            "draft": asdict(self.draft),
            "ratio": self.ratio,
            "vocabularies": self.pair.relation,
            "shared": None if shared is None else len(shared),
            "share": None if shared is None else shared.share,
            "specials": {name: list(both) for name, both in self.specials.items()},
            "methods": list(self.methods),
            "obstacles": self.obstacles,
            "acceptance": None if self.acceptance is None else asdict(self.acceptance),
            "speedup": self.speedup,
            "usable": bool(self.methods),
            "verdict": self.verdict(),
        }


def _find_need(method: Method) -> str:
    """Return what a method needs from a pair, as named in `PairReport.obstacles`."""
    return "text" if method.drafts_text else "every" if method.samples == "scored" else "tokens"


def special_tokens(tokenizer: Any, draft_tokenizer: Any) -> dict[str, tuple[str | None, str | None]]:
    """Return the special tokens of both by role, for roles that either has."""
    if tokenizer is None or draft_tokenizer is None:
        return {}
    both = {
        name: (getattr(tokenizer, f"{name}_token", None), getattr(draft_tokenizer, f"{name}_token", None))
        for name in SPECIALS
    }
    return {name: tokens for name, tokens in both.items() if any(tokens)}
