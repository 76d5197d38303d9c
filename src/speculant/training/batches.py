"""Selects the texts and positions of each training step, as functions of the seed and step alone.

Texts of similar length form fixed groups, to limit padding, and so that the target's states of a group are the same
whenever they are computed. Every epoch visits the groups in a different order.
"""

from __future__ import annotations

import numpy as np

from speculant.training.texts import Int64, Texts

TRAINING, HELD_OUT, WRITTEN = 0, 1, 2  # ids of random streams


class Groups:
    """Groups of texts, and the anchors sampled in them."""

    def __init__(self, texts: Texts, *, size: int, anchors: int, depth: int, seed: int) -> None:
        """Form the groups.

        Args:
            texts: long enough for at least one anchor each, see `usable`.
            size: texts per group.
            anchors: maximum anchors per text.
            depth: maximum depth to train.
            seed: seed of order and anchors.
        """
        self.texts = texts
        self._anchors, self._depth, self._seed = anchors, depth, seed
        self._epoch, self._order = -1, np.zeros(0, np.int64)
        order = np.argsort(texts.lengths, kind="stable")
        self._groups = [order[start : start + size] for start in range(0, len(order), size)]

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> Int64:
        """Return the text indices of a group."""
        return self._groups[index]

    def at(self, batch: int) -> int:
        """Return the group of the n-th batch, counted over all epochs."""
        epoch, place = divmod(batch, len(self))
        if self._epoch != epoch:
            generator = np.random.default_rng([self._seed, TRAINING, epoch])
            self._epoch, self._order = epoch, generator.permutation(len(self))
        return int(self._order[place])

    def anchors(self, group: int, *stream: int) -> Int64:
        """Sample anchors [A, 2] without replacement: text in the group and position, in ascending order.

        Args:
            group: index of the group.
            stream: numbers that, with the seed, determine the sample.
        """
        generator = np.random.default_rng([self._seed, *stream])
        found = []
        for row, text in enumerate(self._groups[group]):
            first, end = anchor_range(self.texts, self._depth, int(text))
            count = min(self._anchors, end - first)
            places = np.sort(generator.choice(end - first, count, replace=False)) + first
            found.append(np.stack([np.full(count, row), places], axis=1))
        return np.concatenate(found).astype(np.int64)


def anchor_range(texts: Texts, depth: int, index: int) -> tuple[int, int]:
    """Return the first position of a text that can be an anchor, and the end of the range.

    The root after an anchor i is token i + 1, which the target must have chosen: it is not in the prompt. As many
    tokens follow as `TrainBatch` guarantees.
    """
    first = max(0, int(texts.prompts[index]) - 1)
    return first, int(texts.lengths[index]) - depth - 2


def usable(texts: Texts, depth: int) -> Int64:
    """Return the texts with room for an anchor."""
    return np.flatnonzero(texts.lengths - depth - 2 > np.maximum(texts.prompts - 1, 0))


def split(count: int, held_out: int, seed: int) -> tuple[Int64, Int64]:
    """Split `count` texts into training and held-out indices."""
    order = np.random.default_rng([seed, HELD_OUT]).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def stream_seed(*numbers: int) -> int:
    """Return a torch seed determined by the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint32)[0])
