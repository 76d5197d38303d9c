"""The uniting scheduler, writing down what the head, the memory and both together drafted."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from speculant.core.tree import DraftTree, Int32
from speculant.integrations.chain_union import AgreementHistory, ChainUnion
from speculant.integrations.vllm_scheduler import UnitingScheduler

FOLDER = "DRAFTS_FOLDER"  # the environment variable that names where to


class RecordingScheduler(UnitingScheduler):
    """Appends each request as a line to `chains.jsonl` in $DRAFTS_FOLDER, see `RecordingUnion`."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self._chains.union = RecordingUnion(os.path.join(os.environ[FOLDER], "chains.jsonl"))


class RecordingUnion(ChainUnion):
    """Writes for each ended request its steps and its text, as [[[length, head, memory, both], ...], text].

    A step is the length that the text had, and the chains of the head, of the memory alone, and of both.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._steps: dict[int, list[Any]] = {}

    def unite(
        self,
        history: AgreementHistory,
        *,
        at: int,
        head: Sequence[int],
        memory: DraftTree,
        maximum: int,
        agreeing: bool = True,
    ) -> DraftTree:
        found = super().unite(history, at=at, head=head, memory=memory, maximum=maximum, agreeing=agreeing)
        alone = memory.tokens[memory.best_chain()[:maximum]].tolist() if len(memory) else []
        self._steps.setdefault(id(history), []).append([at, list(head), alone, found.tokens.tolist()])
        return found

    def observe(self, history: AgreementHistory, text: Sequence[int] | Int32, *, ended: bool = False) -> None:
        super().observe(history, text, ended=ended)
        if ended:
            steps = self._steps.pop(id(history), [])
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps([steps, [int(token) for token in text]]) + "\n")
