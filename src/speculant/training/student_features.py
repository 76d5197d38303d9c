"""The training batches of draft models: the target's texts or their own, without positions that others predict.

- On-policy (DistillSpec: Zhou et al. 2024, arXiv 2310.08461): in a share of the batches the draft model continues the
  prompts itself, and the target scores every position. The samples depend on its weights, on the seed and on the number
  of the batch, so a training resumed from a checkpoint samples the same.
- Col-BT (SpecInfer: Miao et al. 2024, arXiv 2305.09781, section 3.1): positions that previously trained draft models
  predict correctly are skipped, in training and in measurements; the method `specinfer` merges the drafts of all. The
  paper skips a sample if a model and the target generate the same tokens after it. Here every position is such a
  sample, and `before_tokens` is the number of equal tokens after which it is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from speculant.core.errors import UsageError
from speculant.drafters.heads.training.recipe import TrainBatch
from speculant.engines.hf.views.target_parts import HFTargetParts
from speculant.training.batches import WRITTEN, usable
from speculant.training.continuing import TokenPrompt, continue_texts
from speculant.training.features import Features, text_groups
from speculant.training.settings import TrainSettings
from speculant.training.student import Student
from speculant.training.texts import Texts, from_parts


def student_features(
    model: Any,
    target: HFTargetParts,
    texts: Texts,
    student: Student,
    settings: TrainSettings,
    depth: int,
    before: Sequence[Student] = (),
) -> StudentFeatures:
    """Return the batches of texts for a draft model; see `training.features.head_features`.

    Args:
        model: the target.
        target: its parts.
        texts: texts of sufficient length, see `usable`.
        student: the draft model to train.
        settings: training settings.
        depth: maximum depth to train or measure.
        before: draft models whose correctly predicted positions are skipped.

    Raises:
        UsageError: the texts have tokens that the draft model lacks.
    """
    known = min(each.vocabulary for each in (student, *before))
    if texts.tokens and (maximum := int(texts.ids.max())) >= known:
        raise UsageError(
            f"the texts have token {maximum}, and a draft model knows {known} tokens. Name a draft model of the "
            "target's vocabulary."
        )
    return StudentFeatures(model, target, texts, student, settings, depth, before)


class StudentFeatures(Features):
    """See `training.features.Features`."""

    def __init__(
        self,
        model: Any,
        target: HFTargetParts,
        texts: Texts,
        student: Student,
        settings: TrainSettings,
        depth: int,
        before: Sequence[Student],
    ) -> None:
        """Prepare features; the arguments are those of `student_features`."""
        # Draft models do not read the state of the token after an anchor, so the last token of a text is learned too.
        self._depth = depth - 1
        super().__init__(model, target, text_groups(texts, settings, self._depth), student.taps)
        self._student, self._settings, self._before = student, settings, before

    def training_batch(self, number: int) -> TrainBatch:
        if not is_on_policy(number, self._settings.on_policy):
            return self._drop_predicted(super().training_batch(number))
        texts = self._write_texts(number)
        if not len(texts):
            return self.batch(self.groups.at(number), np.zeros((0, 2), np.int64))
        groups = text_groups(texts, replace(self._settings, texts=len(texts)), self._depth)
        own = Features(self._model, self._target, groups, self._student.taps)
        return self._drop_predicted(own.batch(0, groups.anchors(0, WRITTEN, number)), written=True)

    def held_out_batch(self, group: int) -> TrainBatch:
        return self._drop_predicted(super().held_out_batch(group))

    def _write_texts(self, number: int) -> Texts:
        """Return the prompts of a batch with the draft model's continuations; those with room for an anchor."""
        texts, settings = self.groups.texts, self._settings
        chosen = self.groups[self.groups.at(number)]
        prompts = [
            TokenPrompt(prompt_of(texts, int(index), settings.opening), settings.temperature) for index in chosen
        ]
        seed = (settings.seed, WRITTEN, number)
        written = continue_texts(self._student.model, prompts, new_tokens=settings.new_tokens, seed=seed)
        maximum = self._target.positions or int(written.lengths.max())
        parts = [cut_unknown(written[index], self._target.vocabulary)[:maximum] for index in range(len(written))]
        found = from_parts(parts, written.prompts)
        return found.select(usable(found, self._depth))

    @torch.no_grad()
    def _drop_predicted(self, batch: TrainBatch, *, written: bool = False) -> TrainBatch:
        """Return a batch without the anchors whose first drafted tokens another draft model predicts completely.

        Args:
            batch: a batch of any texts.
            written: whether the draft model wrote them: then the target's most probable token is the correct one,
                otherwise the token of the text.
        """
        if not self._before or not len(batch.anchors):
            return batch
        texts, rows = batch.anchors.unbind(1)
        predicted = torch.zeros_like(rows, dtype=torch.bool)
        for student in self._before:
            states, own = student.states(batch.ids), torch.ones_like(predicted)
            for depth in range(1, self._settings.before_tokens + 1):
                inside = rows + depth + 1 < batch.lengths[texts]  # after the end of a text nothing is wrong
                places = torch.where(inside, rows + depth, 0)
                right = batch.ids[texts, places + 1]
                if written:
                    right = self._target.project(batch.final[texts, places]).argmax(-1)
                best = student.project(states[texts, places])[:, : self._target.vocabulary].argmax(-1)
                own &= (best == right) | ~inside
            predicted |= own
        return replace(batch, anchors=batch.anchors[~predicted])


def is_on_policy(number: int, share: float) -> bool:
    """Return whether the draft model writes the n-th batch itself; such batches are spread evenly."""
    return int((number + 1) * share) > int(number * share)


def prompt_of(texts: Texts, index: int, opening: int) -> list[int]:
    """Return the first tokens of a text: its prompt, or some of the text if the prompt's length is unknown."""
    text = texts[index]
    count = int(texts.prompts[index]) or min(opening, len(text) - 1)
    found: list[int] = text[:count].tolist()
    return found


def cut_unknown(ids: Any, vocabulary: int) -> Any:
    """Return the tokens before the first that the target lacks, which can only be vocabulary padding."""
    lacking = np.flatnonzero(ids >= vocabulary)
    return ids[: lacking[0]] if len(lacking) else ids
