"""An OpenVINO model as a target of forced decoding: passes over rows of one text, whose drafted rows can be dropped.

OpenVINO GenAI's pipelines decode freely, which a shape with random weights cannot do meaningfully. So the model is run
here as the pipelines run it, with the same transformation to paged attention, the plugin's own settings and a block
cache. The overhead of their scheduler is left out, in OpenVINO's favour. Rejected rows cost nothing: the next pass
overwrites them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from speculant.core.tree import Float32, Int32

PROMPT_ROWS = 128  # rows per prefill pass, which computes all logits


class OpenVinoModel:
    """One text on a compiled model.

    Attributes:
        length: number of committed tokens.
    """

    def __init__(self, folder: Path, *, threads: int, positions: int) -> None:
        """Compile a model written by `optimum-cli export openvino`.

        Args:
            folder: folder of openvino_model.xml.
            threads: threads per pass.
            positions: maximum tokens of a text, for which the cache is sized.
        """
        import openvino as ov
        from openvino._offline_transformations import paged_attention_transformation

        core = ov.Core()
        model = core.read_model(folder / "openvino_model.xml")
        paged_attention_transformation(model)
        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
        compiled = core.compile_model(model, "CPU", settings)
        self._tensor, self.length = ov.Tensor, 0
        self._request = compiled.create_infer_request()
        self.settings = {name: str(compiled.get_property(name)) for name in ("INFERENCE_PRECISION_HINT",)}
        self.settings["KV_CACHE_PRECISION"] = compiled.get_property("KV_CACHE_PRECISION").to_string()
        values = compiled.input("value_cache.0").get_partial_shape()
        self._blocks = -(-positions // values[2].get_length())
        for each in compiled.inputs:
            if each.any_name.startswith(("key_cache", "value_cache")):
                sizes = [size.get_length() for size in list(each.get_partial_shape())[1:]]
                self._request.set_tensor(each.any_name, ov.Tensor(each.element_type, ov.Shape([self._blocks, *sizes])))
        self._set("block_indices", np.arange(self._blocks, dtype=np.int32))
        self._set("block_indices_begins", np.array([0, self._blocks], np.int32))

    def read(self, prompt: Int32) -> None:
        """Begin a text: read a prompt except for its last token, which is left for the first pass."""
        self.length = 0
        for start in range(0, len(prompt) - 1, PROMPT_ROWS):
            part = prompt[start : min(start + PROMPT_ROWS, len(prompt) - 1)]
            self.forward(part)
            self.length += len(part)

    def forward(self, tokens: Int32) -> Float32:
        """Return the logits [n, V] of tokens after the committed ones; they are valid until the next pass."""
        count, length = len(tokens), self.length
        self._set("input_ids", tokens.astype(np.int64))
        self._set("position_ids", np.arange(length, length + count, dtype=np.int64))
        self._set("past_lens", np.array([length], np.int32))
        self._set("subsequence_begins", np.array([0, count], np.int32))
        self._set("max_context_len", np.array(length + count, np.int32))
        self._request.infer()
        logits: Any = self._request.get_output_tensor(0).data
        found: Float32 = logits.reshape(count, -1)
        return found

    def _set(self, name: str, values: np.ndarray[Any, Any]) -> None:
        self._request.set_tensor(name, self._tensor(values))


def look_up(tokens: Int32, count: int, ngram: int) -> Int32:
    """Return the draft of OpenVINO GenAI's prompt lookup: the tokens after the earliest match of the last tokens.

    Its passes always have the same number of rows: if it finds fewer tokens or none, the rest is padding, here token 0.

    Args:
        tokens: the text so far.
        count: tokens per draft.
        ngram: maximum number of last tokens to match; shorter matches are tried next.
    """
    for size in range(min(ngram, len(tokens) // 2), 0, -1):
        windows = np.lib.stride_tricks.sliding_window_view(tokens, size)[: len(tokens) - size]
        places = np.flatnonzero((windows == tokens[-size:]).all(1))
        if len(places):
            found = tokens[places[0] + size :][:count]
            return np.append(found, np.zeros(count - len(found), np.int32)).astype(np.int32)
    return np.zeros(count, np.int32)
