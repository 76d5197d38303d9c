"""Tables and a mixture that learn a text, without the drafter around them."""

from __future__ import annotations

import numpy as np

from speculant.drafters.mix.arrays import INPUTS, LONGEST_ROW, Scratch, new_features
from speculant.drafters.mix.base import in_use
from speculant.drafters.mix.cells import UNIT, Cells, new_cells, observe
from speculant.drafters.mix.contexts import CONTEXTS, LEARNED, WIDE, WINDOW, hash_contexts
from speculant.drafters.mix.features import gather
from speculant.drafters.mix.history import NEVER, History, add_use
from speculant.drafters.mix.initial import new_mixer
from speculant.drafters.mix.mixer import combine, count_token, squash, train
from speculant.drafters.mix.repetition import NOWHERE
from tables import ids

VOCABULARY = 100


class World:
    """Tables and a mixture that learn a text token by token, each context's row from the first time on."""

    def __init__(self) -> None:
        self.narrow = new_cells(4, 1 << 20, first_bits=9)
        self.wide = new_cells(LONGEST_ROW, 1 << 20, first_bits=6)
        self.mixer = new_mixer(VOCABULARY)
        self.text: list[int] = []
        self.last_use, self.links = np.full(VOCABULARY, NEVER, np.int32), np.zeros(1 << 13, np.int32)
        self.features: Scratch = new_features(INPUTS)

    def table(self, context: int) -> Cells:
        """Return the table that holds a context's rows."""
        return self.wide if WIDE[context] else self.narrow

    def hashes(self) -> np.ndarray:
        """Return the contexts at the end of the text."""
        hashes = np.empty(CONTEXTS, np.uint64)
        window = ids(self.text[-WINDOW:])
        hash_contexts(window, len(window), self.mixer.frequency, hashes)
        return hashes

    def history(self) -> History:
        """Return the text as the kernels take it."""
        return History(ids(self.text), len(self.text), self.last_use, self.links)

    def gather(self, *, copied: int = NOWHERE, length: int = 0, maximum: int = LONGEST_ROW) -> int:
        """Collect the candidates for the next token and compute their logits."""
        count = gather(
            self.narrow, self.wide, self.mixer, in_use(()), self.hashes(), copied, length,
            self.history(), self.text[-1] if self.text else NEVER, len(self.text), maximum, self.features,
        )  # fmt: skip
        combine(self.mixer, self.features, count)
        return count

    def probabilities(self) -> dict[int, float]:
        """Return each candidate's probability."""
        count = self.gather()
        logits = self.features.logits[:count]
        return {
            token: squash(self.mixer, z) for token, z in zip(self.features.candidates.tolist(), logits, strict=False)
        }

    def learn(self, *tokens: int) -> None:
        """Train the mixture on each token, then learn it."""
        for token in ids(tokens):
            train(self.mixer, self.features, self.gather(), token)
            hashes = self.hashes()
            for context in range(LEARNED):
                if hashes[context]:
                    observe(self.table(context), hashes[context], token, 8 * UNIT)
            count_token(self.mixer, token)
            add_use(self.last_use, self.links, token, len(self.text))
            self.text.append(int(token))
