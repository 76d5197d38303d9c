"""Rounds over random texts through the engine's own caches, compared with the logits of `model.generate`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculant.core.engine import MAX_NODES, Pass
from speculant.core.errors import ModelError, OutOfMemoryError
from speculant.core.tree import ROOT, DraftTree, Int32
from speculant.engines.hf.batch_pass import BatchPass
from speculant.engines.hf.forward_pass import ModelRunner, out_of_memory
from speculant.engines.hf.opening import AnySequence, open_sequence
from speculant.engines.hf.quantized.model_weights import rounding_dtype
from speculant.engines.hf.sampling.own_config import leave_out_all

TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.3}
_HALF = (torch.float16, torch.bfloat16)
_FEW = 0.25  # share of half-precision rows that may differ by more: near-ties between experts
_DEPTH = 3  # depth of drafts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeText:
    """A text of random ids.

    Attributes:
        prompt: number of tokens of its prompt.
        length: total number of tokens.
        chunk: number of tokens per part in which the prompt is read; None for all at once.
        nodes: numbers of nodes of drafts, in turn; 0 for those around the correct tokens alone.
        padding: number of masked tokens in front of the prompt.
    """

    prompt: int
    length: int
    chunk: int | None = None
    nodes: tuple[int, ...] = (0,)
    padding: int = 0

    def within(self, positions: int | None) -> ProbeText:
        """Return the text, or one that fits in a model with this many positions."""
        if positions is None or self.length + self.padding <= positions:
            return self
        length = min(self.length, positions)
        prompt = max(1, self.prompt - self.length + length)
        return replace(self, prompt=prompt, length=length, padding=min(self.padding, positions - length))


LONG_TEXTS = (
    ProbeText(prompt=4, length=36),
    ProbeText(prompt=27, length=36, chunk=7),
)  # beyond every limit of a tiny model
OWN_TEXTS = (  # beyond position 128, with the largest drafts, and with a prompt read in parts
    ProbeText(prompt=8, length=16),
    ProbeText(prompt=132, length=146, chunk=66, nodes=(MAX_NODES, 15, 31)),
)
PADDED_TEXTS = (ProbeText(prompt=9, length=26, padding=21), ProbeText(prompt=30, length=47, padding=291))
ROW_COUNTS = (*range(1, 18), 24, 33, 48, MAX_NODES + 1)  # rows of passes: all small counts, some up to the largest


class Plain:
    """The logits of `model.generate`, computed once per text."""

    def __init__(self, model: Any) -> None:
        self._model, self._known = model, dict[ProbeText, Tensor]()

    def logits(self, text: ProbeText, ids: Tensor) -> Tensor:
        """Return the logits [K, V] from which `generate` would choose each token of ids Int64[1, T] after a prompt."""
        if text not in self._known:
            self._known[text] = _generate(self._model, ids, text.prompt, text.padding)
        return self._known[text]

    def failure(self, runner: ModelRunner) -> str:
        """Return the error with which `generate` fails after a random text; "" if it works.

        Raises:
            OutOfMemoryError: the device is full.
        """
        text, ids = _fitting(OWN_TEXTS[0], runner)
        try:
            with out_of_memory(f"{text.length} tokens"):
                self.logits(text, ids)
        except OutOfMemoryError:
            raise
        except Exception as error:  # a class may raise anything for a text without media
            logger.info("%s reads no text alone", type(runner.model).__name__, exc_info=True)
            return f"{type(error).__name__}: {str(error).strip():.200}"
        return ""


def first_difference(runner: ModelRunner, texts: Sequence[ProbeText], plain: Plain) -> str:
    """Return where drafted rounds give other logits than `model.generate`; "" if nowhere.

    Raises:
        OutOfMemoryError: the device is full.
    """
    for text in texts:
        try:
            walk = _Walk(runner, text)
            while walk.goes_on:
                tokens, parents = walk.rows()
                walk.take(walk.cache.forward(tokens, parents).logits)
            expected = plain.logits(walk.text, walk.ids)
        except OutOfMemoryError:
            raise
        except Exception as error:  # a model may raise anything for unexpected masks and positions
            logger.info("a probe of %s failed", type(runner.model).__name__, exc_info=True)
            return f"passes over several tokens fail with {type(error).__name__}: {str(error).strip():.200}"
        wrong = wrong_rows(walk.logits(), expected, rounding_dtype(runner.model))
        if wrong.numel():
            kind = "trees" if runner.capabilities.trees else "chains"
            position = walk.text.prompt + int(wrong[0]) - 1
            return f"in a random text, passes over {kind} changed the logits from position {position} on"
    return ""


def reads_padding(runner: ModelRunner, text: ProbeText, plain: Plain) -> bool:
    """Return whether masked tokens in front of a text change `model.generate`'s output, e.g. by chunks or slots."""
    ids = _random_ids(runner.capabilities.vocabulary, text.length).to(runner.model.device)
    try:
        padded = plain.logits(replace(text, padding=PADDED_TEXTS[0].padding), ids)
    except Exception:  # a class that rejects padding has no padded rows either
        logger.info("%s takes no padding", type(runner.model).__name__, exc_info=True)
        return False
    return bool(wrong_rows(padded, plain.logits(text, ids), rounding_dtype(runner.model)).numel())


def count_difference(runner: ModelRunner, largest: int) -> str:
    """Return a number of rows in a pass that changes the logits of one of them; "" if there is none.

    Args:
        runner: runner of the model.
        largest: maximum rows per pass; those of `ROW_COUNTS` are compared in any case.

    Raises:
        OutOfMemoryError: the device is full.
    """
    walk = _Walk(runner, OWN_TEXTS[0])
    counts = [*ROW_COUNTS, *(ROW_COUNTS[-1] << more for more in range(1, 12) if ROW_COUNTS[-1] << more <= largest)]
    maximum = 1 + min(counts[-1] - 1, walk.cache.room, walk.cache.depth)
    tokens = _random_ids(runner.capabilities.vocabulary, maximum).numpy()[0].astype(np.int32)
    parents = np.arange(-1, maximum - 1, dtype=np.int32)
    if runner.capabilities.trees:
        parents[2:] //= 2  # two children per row
    try:
        whole = _run_dropped(walk.cache, tokens, parents)
        for count in counts:
            part = _run_dropped(walk.cache, tokens[:count], parents[:count])
            wrong = wrong_rows(part, whole[: len(part)], rounding_dtype(runner.model))
            if len(wrong) > (_FEW * maximum if rounding_dtype(runner.model) in _HALF else 0):
                return f"in a random text, a pass over {len(part)} rows gave other logits than one over {len(whole)}"
    except OutOfMemoryError:
        raise
    except Exception as error:
        logger.info("a probe of %s failed", type(runner.model).__name__, exc_info=True)
        return f"passes over several tokens fail with {type(error).__name__}: {str(error).strip():.200}"
    return ""


def _run_dropped(cache: AnySequence, tokens: Int32, parents: Int32) -> Tensor:
    """Return the logits of a pass over rows that are not kept."""
    try:
        logits: Tensor = cache.forward(tokens, parents).logits
        return logits
    finally:
        cache.rollback()


def batch_difference(runner: ModelRunner, texts: Sequence[ProbeText], plain: Plain) -> bool:
    """Return whether passes over several sequences give other logits than `model.generate`, or fail.

    Raises:
        OutOfMemoryError: the device is full.
    """
    batch = BatchPass(runner)
    try:
        walks = [_Walk(runner, text, read=False) for text in texts]
        while unread := [walk for walk in walks if walk.cache.unread]:
            read = batch.prefill([(walk.cache, walk.text.chunk) for walk in unread])
            for walk, result in zip(unread, read, strict=True):
                walk.begin(result)
        while going := [walk for walk in walks if walk.goes_on]:
            passes = batch.forward([(walk.cache, *walk.rows()) for walk in going])
            for walk, result in zip(going, passes, strict=True):
                walk.take(result.logits)
        expected = [plain.logits(walk.text, walk.ids) for walk in walks]
    except OutOfMemoryError:
        raise
    except Exception:  # a model may raise anything for rows of several texts
        logger.info("a probe of %s failed", type(runner.model).__name__, exc_info=True)
        return True
    pairs = zip(walks, expected, strict=True)
    return any(bool(wrong_rows(walk.logits(), logits, rounding_dtype(runner.model)).numel()) for walk, logits in pairs)


def wrong_rows(ours: Tensor, expected: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the indices Int64[n] of the K rows that differ by more than rounding.

    Args:
        ours, expected: logits [K, V]; differences are measured in standard deviations of a row.
        dtype: dtype of the model, or one with a similar rounding error.
    """
    ours, expected = ours.double(), expected.double()
    known = expected.isfinite() & ours.isfinite()
    masked = (expected.isfinite() != ours.isfinite()).any(-1)
    distance = torch.where(known, ours - expected, 0.0).abs().amax(-1)
    spread = torch.where(known, expected, 0.0).std(-1)
    tolerance = TOLERANCES.get(dtype, TOLERANCES[torch.bfloat16])
    wrong = torch.nonzero(masked | (distance > tolerance * spread)).flatten()
    return wrong[:0] if dtype in _HALF and len(wrong) <= _FEW * len(ours) else wrong


class _Walk:
    """Walks through a text in rounds with trees, with chains, with wrong drafts and with none, in turn."""

    def __init__(self, runner: ModelRunner, text: ProbeText, *, read: bool = True) -> None:
        """Start with a text; its prompt is read unless the passes over it will be given to `begin`."""
        self._vocabulary, self._trees = runner.capabilities.vocabulary, runner.capabilities.trees
        text, self.ids = _fitting(text, runner)
        self.text = text
        given, seen = _pad(self.ids[:, : text.prompt], text.padding)
        self.cache = open_sequence(runner, given, padding=seen)
        self._logits: list[Tensor] = []
        while read and self.cache.unread:
            self.begin(self.cache.prefill(text.chunk))
        self._tokens: list[int] = self.ids[0].tolist()
        self._root, self._round = text.prompt, 0
        self._path: list[int] = []

    def begin(self, result: Pass | None) -> None:
        """Take the pass that has read the end of the prompt; None for one that has read less."""
        if result is not None:
            self._logits.append(result.logits[-1:])

    @property
    def goes_on(self) -> bool:
        """Whether the text has another token after the root."""
        return self._root < len(self._tokens) - 1

    def rows(self) -> tuple[Int32, Int32]:
        """Return tokens and parents, Int32[N + 1], of the next pass: the rows of the root and a draft."""
        depth = min(_DEPTH, self.cache.depth, len(self._tokens) - 2 - self._root)
        tree = self._draft(self._tokens[self._root + 1 : self._root + 1 + depth])
        root = np.array([self._tokens[self._root]], np.int32), np.array([ROOT], np.int32)
        return np.concatenate([root[0], tree.tokens]), np.concatenate([root[1], tree.parents + 1])

    def take(self, logits: Tensor) -> None:
        """Keep the correct rows of the pass, and their logits."""
        rows = [0, *(node + 1 for node in self._path)]
        self.cache.keep(rows)
        self._logits.append(logits[rows])
        self._root, self._round = self._root + len(rows), self._round + 1

    def logits(self) -> Tensor:
        """Return the logits [K, V] after the prompt and each correct token."""
        return torch.cat(self._logits)

    def _draft(self, right: list[int]) -> DraftTree:
        """Return a draft around the correct tokens."""
        begins_right = [*right[:1], *(self._other(token) for token in right[1:])]
        kinds: list[list[list[int]]] = [[right], [[]], [begins_right]]
        if self._trees and right:  # correct tokens come last, so that no node's slot matches its depth
            kinds = [[[self._other(right[0])], begins_right, right], *kinds]
        tree = DraftTree.from_paths(self._widen_paths(kinds[self._round % len(kinds)]))
        self._path, above = [], ROOT
        for token in right:
            above = next((node for node in tree.children(above) if tree.tokens[node] == token), ROOT)
            if above == ROOT:
                break
            self._path.append(above)
        return tree

    def _widen_paths(self, paths: list[list[int]]) -> list[list[int]]:
        """Return the paths of a draft with wrong tokens added next to or after them, up to the current number of nodes.

        In a tree they are the first nodes, below the root; in a chain the last ones.
        """
        more = min(self.text.nodes[self._round % len(self.text.nodes)], self.cache.room) - sum(
            len(path) for path in paths
        )
        if not paths[-1]:
            return paths
        if not self._trees:
            [path] = paths
            more = min(more, self.cache.depth - len(path))
            return [[*path, *(self._other(path[-1]) for _ in range(more))]]
        first = {path[0] for path in paths}
        others = ((paths[-1][0] + 2 + place) % self._vocabulary for place in range(more))
        return [*([token] for token in others if token not in first), *paths]

    def _other(self, token: int) -> int:
        return (token + 1) % self._vocabulary


def _generate(model: Any, ids: Tensor, prompt: int, padding: int) -> Tensor:
    """Return the logits [K, V] from which `model.generate` would choose each token after the prompt."""
    given, seen = _pad(ids[:, :prompt], padding)
    forced: list[int] = ids[0].tolist()
    asked: dict[str, Any] = {
        "max_new_tokens": ids.shape[1] - prompt,
        "do_sample": False,
        "num_beams": 1,
        "return_dict_in_generate": True,
        "output_logits": True,
        "pad_token_id": 0,
        "eos_token_id": None,  # the forced text may hold an end
    }
    output = model.generate(
        given,
        attention_mask=seen,
        **{**leave_out_all(model.generation_config), **asked},
        prefix_allowed_tokens_fn=lambda _, text: [forced[len(text) - padding]],  # some classes ignore processors
    )
    if output.sequences[0, padding:].tolist() != forced:
        raise ModelError("its `generate` writes another text than the only one that it was allowed")
    return torch.cat(output.logits)


def _fitting(text: ProbeText, runner: ModelRunner) -> tuple[ProbeText, Tensor]:
    """Return a text within the model's positions, and its ids Int64[1, T]."""
    capabilities = runner.capabilities
    if not getattr(runner.model.config, "rope_parameters", None):  # otherwise no table of positions ends
        text = text.within(capabilities.positions)
    if capabilities.rope_follows and text.prompt > (capabilities.rope_limit or 0):
        text = text.within(capabilities.rope_limit)  # beyond it a prompt uses the rotary factors of earlier texts
    return text, _random_ids(capabilities.vocabulary, text.length).to(runner.model.device)


def _pad(ids: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Return ids after `padding` padding tokens, and the mask that hides those."""
    given = torch.nn.functional.pad(ids, (padding, 0))
    seen = torch.ones_like(given)
    seen[:, :padding] = 0
    return given, seen


def _random_ids(vocabulary: int, count: int) -> Tensor:
    """Return Int64[1, T] without the smallest ids, which are often padding and the like."""
    return torch.from_numpy(np.random.default_rng(5).integers(min(3, vocabulary - 2), vocabulary, (1, count)))
