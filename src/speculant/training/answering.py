"""Lets an encoder-decoder write what it answers to many sources, by its own `generate`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from speculant.engines.hf.views.decoder_output import decoder_positions
from speculant.training.continuing import TokenPrompt, find_end_tokens
from speculant.training.texts import Int32, Texts, from_parts


def answer_sources(model: Any, sources: Sequence[TokenPrompt], *, new_tokens: int, seed: Sequence[int]) -> Texts:
    """Return the decoder's texts for non-empty sources, with these; those of one temperature are written together.

    Args:
        model: an encoder-decoder of transformers whose encoder reads text.
        sources: the sources and temperatures.
        new_tokens: maximum new tokens per text, within the decoder's positions.
        seed: seed of sampling.
    """
    positions, ends = decoder_positions(model), find_end_tokens(model)
    maximum = new_tokens if positions is None else min(new_tokens, positions - 1)
    parts, groups = [np.zeros(0, np.int32)] * len(sources), dict[float, list[int]]()
    for row, source in enumerate(sources):
        groups.setdefault(source.temperature, []).append(row)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.inference_mode():
        torch.manual_seed(int(np.random.SeedSequence(list(seed)).generate_state(1)[0]))
        for temperature, rows in sorted(groups.items()):
            found = _generate(model, [sources[row].ids for row in rows], temperature, maximum)
            for row, ids in zip(rows, found, strict=True):
                parts[row] = _until_end(ids, ends)
    texts = from_parts(parts, [1] * len(parts))  # the first token is no choice of the model
    return replace(texts, sources=from_parts([np.asarray(source.ids, np.int32) for source in sources]))


def _generate(model: Any, sources: Sequence[Sequence[int]], temperature: float, maximum: int) -> NDArray[np.int64]:
    """Return the ids [rows, T] that `generate` returns, without beams and filters."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(source) for source in sources], batch_first=True)
    lengths = torch.tensor([len(source) for source in sources])
    config = copy.deepcopy(model.generation_config)
    config.update(num_beams=1, early_stopping=False, length_penalty=1.0, max_length=None, max_new_tokens=maximum)
    sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    unset = {} if temperature else dict.fromkeys(("temperature", "top_k", "top_p"))
    config.update(do_sample=bool(temperature), **sampling, **unset)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    found = model.generate(ids.to(model.device), attention_mask=mask.to(model.device), generation_config=config)
    written: NDArray[np.int64] = found.cpu().numpy()
    return written


def _until_end(ids: NDArray[np.int64], ends: Sequence[int]) -> Int32:
    """Return the tokens up to the first that ends the text; the first of all may be the same token."""
    ended = np.flatnonzero(np.isin(ids[1:], ends))
    return ids[: ended[0] + 2 if len(ended) else None].astype(np.int32)
