"""A model for vLLM whose greedy output is a recording: what a large model once answered, without the large model.

It has one attention layer, so that vLLM schedules, caches and batches as ever, and never runs it. A row's logits are 1
for the token that the recording has at the next position and 0 elsewhere. A row below a wrong draft repeats the
recording too; such rows are rejected anyway.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

ARCHITECTURE = "SpeculantReplayForCausalLM"
_RECORDINGS = "recordings.json"


def write_replay_model(
    folder: Path, recordings: Sequence[tuple[list[int], list[int]]], *, vocabulary: int, longest: int, end: int
) -> Path:
    """Write a checkpoint that answers each prompt with its output; return the folder.

    Args:
        folder: is created.
        recordings: prompt and output, as ids; prompts must differ.
        vocabulary: V.
        longest: the model's length.
        end: the token that follows the end of an output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "num_hidden_layers": 1,
        "vocab_size": vocabulary,
        "max_position_embeddings": longest,
        "eos_token_id": end,
        "bos_token_id": None,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / _RECORDINGS).write_text(json.dumps([[prompt, [*output, end]] for prompt, output in recordings]))
    return folder


def replay_model_class() -> type[Any]:
    """Return the model's class; vLLM and torch are imported only here."""
    import torch
    from vllm.forward_context import get_forward_context
    from vllm.model_executor.layers.attention import Attention

    class ReplayForCausalLM(torch.nn.Module):
        """Finds each request's recording by its prompt and remembers it by its first block of the cache."""

        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__()
            self.layer = f"{prefix}.layers.0.attention" if prefix else "layers.0.attention"  # vLLM reads the number
            self.attention = Attention(1, 64, 1.0, cache_config=vllm_config.cache_config, prefix=self.layer)
            model = vllm_config.model_config
            self.vocabulary, self.hidden = model.get_vocab_size(), 64
            rows = json.loads((Path(model.model) / _RECORDINGS).read_text())
            self.recordings = {tuple(prompt): [*prompt, *output] for prompt, output in rows}
            self.running: dict[int, list[int]] = {}

        def embed_input_ids(self, input_ids: Any) -> Any:
            return torch.zeros(len(input_ids), self.hidden)

        def forward(
            self, input_ids: Any, positions: Any, intermediate_tensors: Any = None, inputs_embeds: Any = None
        ) -> Any:
            hidden = torch.zeros(len(positions), self.hidden)
            metadata = get_forward_context().attn_metadata
            if isinstance(metadata, dict) and self.layer in metadata:
                self._answer(input_ids, positions, metadata[self.layer], hidden)
            return hidden

        def _answer(self, input_ids: Any, positions: Any, metadata: Any, hidden: Any) -> None:
            starts, blocks = metadata.query_start_loc.tolist(), metadata.block_table[:, 0].tolist()
            places = positions.tolist()
            for i, (start, stop) in enumerate(pairwise(starts)):
                if start == stop:
                    continue
                if places[start] == 0:
                    self.running[blocks[i]] = self._find(input_ids[start:stop].tolist())
                text = self.running[blocks[i]]
                following = [text[min(place + 1, len(text) - 1)] for place in places[start:stop]]
                hidden[start:stop, 0] = torch.tensor(following, dtype=torch.float32)

        def _find(self, tokens: list[int]) -> list[int]:
            for length in range(len(tokens), 0, -1):  # longer than the prompt where a preempted request is read again
                if tuple(tokens[:length]) in self.recordings:
                    return self.recordings[tuple(tokens[:length])]
            raise ValueError("a prompt has no recording")

        def compute_logits(self, hidden_states: Any) -> Any:
            logits = torch.zeros(len(hidden_states), self.vocabulary)
            return logits.scatter_(1, hidden_states[:, :1].long(), 1.0)

        def load_weights(self, weights: Any) -> set[str]:
            return set()

    return ReplayForCausalLM
