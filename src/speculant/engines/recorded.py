"""A recorded output as an engine: its tokens are what a greedy target would choose, without a model.

Passes compute nothing. So drafters can be tried on outputs of models that are not available, in the same decoding
rounds as with a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from speculant.core.engine import NO_OUTPUTS, Capabilities, Engine, EngineArray, Pass, RequestedOutputs, TargetCache
from speculant.core.errors import UnsupportedError
from speculant.core.sampler import Sampler
from speculant.core.sublayers import Sublayers
from speculant.core.tree import UNLIMITED, DraftTree, Int32


class RecordedEngine(Engine):
    """Empty passes; `on_pass` is called with the rows of each. Without `trees` it verifies only chains."""

    def __init__(
        self,
        *,
        vocabulary: int = UNLIMITED,
        trees: bool = True,
        on_pass: Callable[[int], object] = lambda _rows: None,
    ) -> None:
        self._capabilities = Capabilities(vocabulary=vocabulary, trees=trees)
        self._on_pass = on_pass

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def forward(self, batch: Sequence[tuple[Any, int, DraftTree]], needs: RequestedOutputs = NO_OUTPUTS) -> list[Pass]:
        """Count the rows. Requested logits and hidden states are missing: a recording has none."""
        if needs.hidden_layers:
            raise UnsupportedError("a recorded output has no hidden states; this drafter needs a model.")
        self._on_pass(sum(len(draft) + 1 + len(draft.queries) for _, _, draft in batch))
        return [Pass(logits=None) for _ in batch]

    def read(self, arrays: Sequence[EngineArray]) -> list[list[Any]]:
        return [list(array) for array in arrays]


class RecordedCache(TargetCache):
    """Counts the tokens that a sequence would have cached."""

    def __init__(self, length: int = 0) -> None:
        """Start with `length` committed tokens."""
        self._length = length

    @property
    def length(self) -> int:
        return self._length

    @property
    def unread(self) -> int:
        return 0

    @property
    def depth(self) -> int:
        return UNLIMITED

    def prefill(self, maximum: int | None = None, *, needs: RequestedOutputs = NO_OUTPUTS) -> Pass | None:
        return Pass(logits=None)

    def forward(
        self,
        tokens: Int32,
        parents: Int32,
        *,
        needs: RequestedOutputs = NO_OUTPUTS,
        layers: Sequence[int] | Sublayers | None = None,
        embeddings: EngineArray = None,
    ) -> Pass:
        return Pass(logits=None)

    def check(self, draft: DraftTree) -> None:
        pass

    def keep(self, rows: Sequence[int]) -> None:
        self._length += len(rows)

    def rollback(self) -> None:
        pass

    def restart(self) -> None:
        pass

    def release(self) -> None:
        pass


class RecordedSampler(Sampler):
    """Commits the tokens of a recorded output in order."""

    def __init__(self, output: Sequence[int]) -> None:
        self._output = output
        self.tokens: list[int] = []
        self.greedy, self.parallel = True, False

    @property
    def room(self) -> int:
        return len(self._output) - len(self.tokens)

    def load(self, logits: EngineArray) -> None:
        pass

    def draw_all(self, tree: DraftTree) -> EngineArray | None:
        return None

    def set_drawn(self, drawn: list[Any]) -> None:
        pass

    def draw(self, row: int) -> int:
        return self._output[len(self.tokens)]

    def distribution(self, row: int) -> EngineArray:
        raise UnsupportedError("a recorded output has no distributions; use the verifier 'sample-then-follow'.")

    def probabilities(self) -> EngineArray | None:
        return None

    def uniforms(self, n: int) -> EngineArray:
        raise UnsupportedError("a recorded output has no random stream; use the verifier 'sample-then-follow'.")

    def commit(self, token: int) -> bool:
        self.tokens.append(token)
        return self.room == 0

    def end_round(self) -> None:
        pass
