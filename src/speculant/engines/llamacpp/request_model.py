"""A transformers model without weights, whose `generate` prepares requests to a GGUF model.

transformers' `generate` merges configs and creates processors and criteria before its decoding loop starts, where the
speculator takes over. So a request to a GGUF model has the same options as any other, with the same meaning, and this
model only has to know the vocabulary, the positions and the special tokens. Besides the engine in this folder, users
call it, by `model.generate(..., custom_generate=speculator)`; everything else asks the engine, or `kind` before there
is one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel

from speculant.core.errors import UnsupportedError

if TYPE_CHECKING:
    from speculant.engines.llamacpp.context import LlamaContext
    from speculant.engines.llamacpp.options import LlamaCppOptions
    from speculant.engines.llamacpp.tokenizer import GGUFTokenizer

CPU = torch.device("cpu")


class GGUFConfig(PretrainedConfig):  # type: ignore[misc]
    """The config of a GGUF model, as far as transformers needs it."""

    model_type = "gguf"


class LlamaCppModel(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A GGUF model for `Speculator`. It is a transformers model because `generate` is defined on those alone.

    Attributes:
        context: llama.cpp's model and cache.
        name_or_path: path of the file.
    """

    config_class = GGUFConfig
    main_input_name = "input_ids"

    def __init__(self, config: GGUFConfig, context: LlamaContext) -> None:
        super().__init__(config)
        self.context = context

    @property
    def device(self) -> torch.device:
        """The device of the logits: llama.cpp returns them in host memory."""
        return CPU

    @property
    def dtype(self) -> Any:
        """The type of the weights as text, such as "q8_0"."""
        return self.context.model.weights

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Return the number of weights in llama.cpp."""
        return self.context.model.parameters

    def _supports_default_dynamic_cache(self) -> bool:
        """Return False: transformers must not create a cache, since llama.cpp has its own."""
        return False

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> Any:
        """Raise an error: only speculators run its passes.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "a GGUF model is decoded by a speculator: use `Speculator.from_gguf(path).generate(...)`, or "
            "`model.generate(..., custom_generate=speculator)`."
        )


def load_gguf(path: str | Path, options: LlamaCppOptions | None = None) -> tuple[LlamaCppModel, GGUFTokenizer | None]:
    """Load a GGUF file; return the model and its tokenizer, None if the file has none.

    Args:
        path: path of the file.
        options: see `LlamaCppOptions`; None for the defaults.

    Raises:
        ModelNotFoundError, ModelError, UnsupportedError, OutOfMemoryError: see `LlamaModel` and `LlamaContext`.
        UsageError: the options contradict the model.
    """
    # Imported here, since every speculator asks whether its model is one of these.
    from speculant.engines.llamacpp.context import LlamaContext
    from speculant.engines.llamacpp.model import LlamaModel
    from speculant.engines.llamacpp.options import LlamaCppOptions
    from speculant.engines.llamacpp.tokenizer import open_tokenizer

    chosen = options or LlamaCppOptions()
    loaded = LlamaModel(path, chosen)
    context, tokenizer = LlamaContext(loaded, chosen), open_tokenizer(loaded)
    special: dict[str, Any] = {}
    if tokenizer is not None:
        special = {
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.stop_ids or None,
            "pad_token_id": tokenizer.pad_token_id,
        }
    config = GGUFConfig(
        vocab_size=loaded.vocabulary,
        max_position_embeddings=context.positions,
        num_hidden_layers=loaded.layers,
        **special,
    )
    config._name_or_path = str(path)
    model = LlamaCppModel(config, context)
    model.generation_config = GenerationConfig(**special)
    return model.eval(), tokenizer
