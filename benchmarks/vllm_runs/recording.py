"""The proposer, writing down what it drafts: to see that all ranks draft the same."""

from __future__ import annotations

import json
import os
from typing import Any

from speculant.integrations.vllm import Proposer

FOLDER = "DRAFTS_FOLDER"  # the environment variable that names where to


class RecordingProposer(Proposer):
    """Appends every step's drafts as a line to `rank-N.jsonl` in $DRAFTS_FOLDER."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._path = os.path.join(os.environ[FOLDER], f"rank-{vllm_config.parallel_config.rank}.jsonl")

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        found = super().propose(*args, **kwargs)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        return found
