"""`generation_config`, which `transformers chat` sends: a transformers GenerationConfig, as JSON text.

Its fields are used for parameters that the request omits. Unsupported fields are refused by name, like unknown
parameters.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from speculant.serving.bounds import Rows, Strict
from speculant.serving.token_types import Finite, TokenId

_SAME = ("top_p", "top_k", "min_p", "repetition_penalty")


class GenerationConfig(Strict):
    """The supported fields, and those that have no effect here.

    Attributes:
        do_sample: false for greedy decoding, whatever the temperature.
        max_new_tokens: the same as `max_tokens`.
        temperature, top_p, top_k, min_p, repetition_penalty: as in requests.
        eos_token_id: tokens that end the text, instead of the model's own.
        bos_token_id, pad_token_id, transformers_version, from_model_config: no effect for a single prompt.
    """

    do_sample: bool | None = None
    max_new_tokens: int | None = Field(default=None, ge=1)
    temperature: Finite | None = Field(default=None, ge=0, le=100)
    top_p: Finite | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, lt=1 << 31)
    min_p: Finite | None = Field(default=None, ge=0, le=1)
    repetition_penalty: Finite | None = Field(default=None, ge=0.01, le=100)
    eos_token_id: TokenId | Annotated[Rows[TokenId], Field(min_length=1, max_length=64)] | None = None
    bos_token_id: TokenId | None = None
    pad_token_id: int | None = None
    transformers_version: str | None = None
    from_model_config: bool | None = Field(default=None, alias="_from_model_config")

    @property
    def ends(self) -> list[int] | None:
        """The tokens that end the text, None for the model's own."""
        return [self.eos_token_id] if isinstance(self.eos_token_id, int) else self.eos_token_id

    def parameters(self) -> dict[str, Any]:
        """Return the request parameters that these fields correspond to."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        found["temperature"] = 0.0 if self.do_sample is False else self.temperature
        found["max_tokens"] = self.max_new_tokens
        return {name: value for name, value in found.items() if value is not None}
