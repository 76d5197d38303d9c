"""A transformers model as a target: one pass over root and nodes, rollback by keeping the accepted rows.

The cache is transformers' own DynamicCache, written in place. A pass appends a row for the root and one for
every node in flat order, whatever their depth; rotary or learned positions come from position ids = prefix +
depth, so after the walk the accepted rows only have to be moved together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from speculant.core.errors import OutOfMemoryError, UsageError
from speculant.core.tree import Bool, DraftTree, Float32, Int32, Int64
from speculant.engines.hf.cache import keep_rows, usable_cache
from speculant.engines.hf.capabilities import Abilities, decode_mode
from speculant.engines.hf.cpu.accelerate import Acceleration
from speculant.engines.hf.topk import best_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What a pass over root and nodes takes in: ids and positions Int64[N + 1], and the mask as the model wants it."""

    ids: Int64
    positions: Int64
    mask: Any


class TransformersTarget:
    """One sequence on a model. Not for several threads at once."""

    def __init__(
        self,
        model: Any,
        abilities: Abilities,
        ids: Tensor,
        *,
        cache: DynamicCache | None = None,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
        chunk: int | None = None,
        fast: Acceleration | None = None,
    ) -> None:
        """Prepare a sequence.

        Args:
            model: a causal LM that `check_model` accepted.
            abilities: what it said.
            ids: Int64[1, T], the whole prompt, cached part included.
            cache: what is cached of it already; fewer tokens than T.
            padding: Int64[1, T], 0 at padding, or None.
            positions: Int64[1, T] or of the uncached part, or None to count the unpadded tokens.
            chunk: tokens per prefill pass, or None for one pass.
            fast: the model's preparation, or None for its plain passes.

        Raises:
            UnsupportedError: the cache is of a kind that cannot be rolled back.
        """
        self.model, self.abilities, self.ids = model, abilities, ids
        self.cache = usable_cache(cache)
        self._length = self._given = int(self.cache.get_seq_length())
        self._padding = None if padding is None or bool(padding.all()) else padding
        self._positions, self._chunk = positions, chunk
        self._fast = Acceleration() if fast is None else fast
        self._seen: Bool | None = None
        shift = 0
        if self._padding is not None:
            self._seen = self._padding[0].bool().cpu().numpy()
            shift = int((~self._seen).sum())
        elif positions is not None:
            shift = ids.shape[1] - 1 - int(positions[0, -1])
        self._shift = shift  # cache slot minus position

    @property
    def cached(self) -> int:
        """How many tokens the cache holds."""
        return self._length

    @property
    def position(self) -> int:
        """The position of the next pass's root."""
        return self._length - self._shift

    def prefill(self) -> Tensor:
        """Read what is not cached of the prompt; return Logits[1, V]. Where it fails the cache is as it was given."""
        self._check_cache()
        self._fast.check_weights()
        try:
            return self._read_prompt()
        except BaseException:
            self.restart()
            raise

    def restart(self) -> None:
        """Forget everything but what was cached in the beginning."""
        self._length = self._given
        self.rollback()

    def _read_prompt(self) -> Tensor:
        new = self.ids[:, self._length :]
        pieces = [new] if self._chunk is None else list(torch.split(new, self._chunk, dim=1))
        for piece in pieces:
            end = self._length + piece.shape[1]
            positions = self._prompt_positions(self._length, end)
            padding = None if self._padding is None else self._padding[:, :end]
            options = {"logits_to_keep": 1} if self.abilities.keeps_logits else {}
            logits = self._forward(piece, padding, positions, **options)
            self._length = end
        return logits[0, -1:]

    def shape(self, tree: DraftTree) -> DraftTree:
        """Return the part of the draft that one pass can verify: its best chain where the model takes no trees.

        Raises:
            ValueError: a node is no token of the model.
            UsageError: the cache is in use elsewhere.
        """
        self._check_cache()
        if not len(tree):
            return tree
        if not 0 <= tree.tokens.min() <= tree.tokens.max() < self.abilities.vocabulary:
            wrong = next(token for token in tree.tokens.tolist() if not 0 <= token < self.abilities.vocabulary)
            raise ValueError(f"the drafter proposed token {wrong}; the model has {self.abilities.vocabulary}.")
        if not self.abilities.trees:
            tree = tree.chain()
        # A node beyond the limit would turn the root's own row by other factors than plain decoding does.
        before = 0 if self.abilities.rope_limit is None else self.abilities.rope_limit - self.position
        return tree.within(before - 1) if before > 0 else tree

    def rows(self, root: int, tree: DraftTree, *, full: bool = False) -> Rows:
        """Return what a pass over root and nodes takes in; the cache may grow by as many rows until commit or rollback.

        Args:
            root: the last committed token.
            tree: N nodes.
            full: whether masks must be four-dimensional, and one for each kind of layer.
        """
        self._check_cache()
        count = len(tree) + 1
        ids, depths = np.full(count, root, np.int64), np.zeros(count, np.int64)
        ids[1:], depths[1:] = tree.tokens, tree.depths()
        plain = not len(tree) or not self.abilities.trees
        if full:
            free = not len(tree) and self.abilities.window is None and self._seen is None
            mask = None if free else self._tree_mask(tree)
        else:
            mask = self._padding_mask(count) if plain else self._tree_mask(tree)
        return Rows(ids, depths + self.position, mask)

    def verify(self, root: int, tree: DraftTree) -> Tensor:
        """Run one pass over root and nodes; return Logits[N + 1, V]."""
        self._check_cache()
        if self._fast.captured is not None:
            logits = self._fast.captured.verify(self, root, tree, shift=self._shift, seen=self._seen)
            if logits is not None:
                return logits
        rows = self.rows(root, tree)
        device = self.ids.device
        ids, positions = (torch.from_numpy(each)[None].to(device) for each in (rows.ids, rows.positions))
        with decode_mode(self.model):
            return self._forward(ids, rows.mask, positions)[0]

    def commit(self, path: list[int]) -> None:
        """Move the accepted rows behind the root's and drop the rest."""
        captured = self._fast.captured
        if captured is None or not captured.keep(self.cache, self._length + 1, path):
            keep_rows(self.cache, self._length + 1, path)
        self._length += 1 + len(path)

    def rollback(self) -> None:
        """Forget the cache rows of a pass that was not committed."""
        keep_rows(self.cache, self._length, [])

    def release(self) -> None:
        """Let go of the cache, which is most of what a request holds; nothing can follow."""
        self.cache, self._length = usable_cache(None), 0

    def read(self, choices: Sequence[Tensor]) -> list[list[int]]:
        """Return what samplers chose, Int64[N + 1] each, in one host sync."""
        read: list[int] = torch.cat(list(choices)).tolist()
        ends = np.cumsum([len(each) for each in choices]).tolist()
        return [read[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def top(self, logits: Tensor, k: int) -> tuple[Int32, Float32]:
        """Return ids and logits of each row's k best tokens, best first: [N + 1, k]; valid after the next sync."""
        values, ids = best_tokens(logits, min(k, logits.shape[-1]))
        places = ids.to(torch.int32).to("cpu", non_blocking=True)
        return places.numpy(), values.float().to("cpu", non_blocking=True).numpy()

    def _check_cache(self) -> None:
        if self.cache.get_seq_length() != self._length:
            raise UsageError("this request's cache was used elsewhere meanwhile; give each request a cache of its own.")

    def _forward(self, ids: Tensor, mask: Any, positions: Tensor, **options: Any) -> Tensor:
        if self.abilities.takes_positions:
            options["position_ids"] = positions
        model = self._fast.model_for(self.model, ids.shape[1])
        with out_of_memory(f"{self._length + ids.shape[1]} cached tokens"):
            output = model(
                input_ids=ids.to(self.model.device),
                attention_mask=mask,
                past_key_values=self.cache,
                use_cache=True,
                return_dict=True,
                **options,
            )
        logits: Tensor = output.logits
        return logits

    def _prompt_positions(self, start: int, end: int) -> Tensor:
        if self._positions is not None:
            given = self._positions
            offset = self.ids.shape[1] - given.shape[1]
            return given[:, start - offset : end - offset]
        if self._padding is not None:
            return (self._padding.long().cumsum(-1) - 1).clamp(min=0)[:, start:end]
        return torch.arange(start, end, device=self.ids.device)[None]

    def _padding_mask(self, rows: int) -> Tensor | None:
        """Return the 2-D mask for a pass in which every row sees all before it, None without padding."""
        if self._padding is None:
            return None
        more = self._length + rows - self._padding.shape[1]
        return torch.nn.functional.pad(self._padding, (0, more), value=1)

    def _tree_mask(self, tree: DraftTree) -> Any:
        prefix: int | Bool = self._length
        if self._seen is not None:
            prefix = np.ones(self._length, bool)
            prefix[: len(self._seen)] = self._seen
        full = (
            self._to_device(tree.attention_mask(prefix)) if self.abilities.mixed or not self.abilities.window else None
        )
        if self.abilities.window is None:
            return full
        sliding = self._to_device(tree.attention_mask(prefix, window=self.abilities.window))
        return {"full_attention": full, "sliding_attention": sliding} if self.abilities.mixed else sliding

    def _to_device(self, mask: Bool) -> Tensor:
        if self.abilities.additive:
            lowest = torch.finfo(self.model.dtype).min
            additive = torch.from_numpy(DraftTree.additive(mask, lowest))
            return additive.to(device=self.model.device, dtype=self.model.dtype)
        return torch.from_numpy(mask).to(self.model.device)


@contextlib.contextmanager
def out_of_memory(where: str) -> Iterator[None]:
    """Turn the device's complaint that its memory is full into an OutOfMemoryError that says where and what to do."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)):
            raise
        raise OutOfMemoryError(
            f"the device ran out of memory at {where}. Draft fewer nodes, shorten the prompt, or use a smaller dtype."
        ) from error
