"""Lets a target write the texts that its heads learn from.

A drafter should learn the target's own output, not human text (Kim and Rush 2016, arXiv 1606.07947: sequence-level
knowledge distillation). Texts are written in shards of prompts of similar length. Each shard is a function of prompts,
settings and its number alone: an interrupted run resumes with the first missing shard, and more shards can be added
later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speculant.core.errors import FileError, OutOfMemoryError, UsageError, is_out_of_memory
from speculant.training.answering import answer_sources
from speculant.training.continuing import TokenPrompt, continue_texts
from speculant.training.fingerprint import TargetIdentity
from speculant.training.shards import read_manifest, shard_file, write_manifest, write_shard
from speculant.training.texts import Texts
from speculant.training.workers import Workers

POOL = 16  # number of shards whose prompts are drawn together, then sorted by length
MIX = ((0.5, 0.0), (0.25, 0.8), (0.25, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingSettings:
    """Settings of the texts to write.

    Attributes:
        texts: number of texts, rounded up to whole shards; shards do not depend on it.
        rows: texts per shard, which are written together.
        new_tokens: maximum new tokens per text.
        temperatures: temperatures of the texts, with the share of each.
        opening: range of the number of leading prompt tokens to use; None for whole prompts.
        seed: seed of the choice of prompts and of sampling.
    """

    texts: int
    rows: int = 64
    new_tokens: int = 256
    temperatures: tuple[tuple[float, float], ...] = MIX
    opening: tuple[int, int] | None = None
    seed: int = 0

    @property
    def shards(self) -> int:
        """The number of shards for the texts."""
        return -(-self.texts // self.rows)


@dataclass(frozen=True, slots=True)
class Written:
    """The report of a run.

    Attributes:
        shards: number of shards written.
        found: number of shards that an earlier run had written.
        tokens: number of tokens written, including prompts.
    """

    shards: int
    found: int
    tokens: int


def write_texts(
    model: Any,
    prompts: Sequence[Sequence[int]],
    out: Path,
    settings: WritingSettings,
    target: TargetIdentity,
    *,
    workers: Workers | None = None,
    advance: Callable[[int], object] | None = None,
) -> Written:
    """Write the missing shards.

    Args:
        model: the target, a transformers model.
        prompts: token ids, none of them empty; an encoder-decoder's sources.
        out: the folder of the shards.
        settings: settings of the texts.
        target: the model's fingerprints.
        workers: the processes that write together.
        advance: called with the number of tokens of each written shard.

    Raises:
        UsageError: the folder has other contents, or there are no prompts.
        FileError: it cannot be written.
        OutOfMemoryError: a batch does not fit.
    """
    workers = workers or Workers()
    if not prompts:
        raise UsageError("there are no prompts to continue. Name a file of prompts.")
    if workers.first:
        _begin(out, prompts, settings, target)
    workers.wait()
    drawing = Drawing(prompts, settings)
    written, found, tokens = 0, 0, 0
    for number in range(workers.rank, settings.shards, workers.count):
        path = shard_file(out, number)
        if path.exists():
            found += 1
            continue
        texts = _continue_shard(model, drawing.shard(number), settings, number)
        write_shard(path, texts)
        written, tokens = written + 1, tokens + texts.tokens
        if advance is not None:
            advance(texts.tokens)
    workers.leave()
    return Written(written, found, tokens)


class Drawing:
    """Selects the prompts and temperatures of each shard."""

    def __init__(self, prompts: Sequence[Sequence[int]], settings: WritingSettings) -> None:
        self._prompts, self._settings = prompts, settings
        self._again, self._order = -1, np.zeros(0, np.int64)

    def shard(self, number: int) -> list[TokenPrompt]:
        """Return the prompts of a shard, which have similar lengths."""
        settings = self._settings
        pool, place = divmod(number, POOL)
        first = pool * POOL * settings.rows
        drawn = [self._prompt(text) for text in range(first, first + POOL * settings.rows)]
        drawn.sort(key=lambda prompt: len(prompt.ids))
        order = np.random.default_rng([settings.seed, 1, pool]).permutation(POOL)
        start = int(order[place]) * settings.rows
        return drawn[start : start + settings.rows]

    def _prompt(self, text: int) -> TokenPrompt:
        """Return the prompt of a text; each prompt occurs once per pass over all of them."""
        settings, count = self._settings, len(self._prompts)
        again, place = divmod(text, count)
        if again != self._again:
            generator = np.random.default_rng([settings.seed, 0, again])
            self._again, self._order = again, generator.permutation(count)
        ids = list(self._prompts[self._order[place]])
        generator = np.random.default_rng([settings.seed, 2, text])
        shares = np.array([share for share, _ in settings.temperatures])
        temperatures = np.array([temperature for _, temperature in settings.temperatures])
        if settings.opening is not None:
            minimum, maximum = settings.opening
            ids = ids[: int(generator.integers(minimum, maximum + 1))]
        elif again and temperatures.any():  # decoded greedily again, it would give the same text
            shares = shares * (temperatures > 0)
        return TokenPrompt(ids, float(generator.choice(temperatures, p=shares / shares.sum())))


def _continue_shard(model: Any, prompts: Sequence[TokenPrompt], settings: WritingSettings, number: int) -> Texts:
    """Write the texts of a shard.

    Raises:
        OutOfMemoryError: they do not fit in one batch.
    """
    try:
        write = answer_sources if getattr(model.config, "is_encoder_decoder", False) else continue_texts
        return write(model, prompts, new_tokens=settings.new_tokens, seed=[settings.seed, number])
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        longest = max(len(prompt.ids) for prompt in prompts)
        raise OutOfMemoryError(
            f"the device ran out of memory with {len(prompts)} texts of up to {longest + settings.new_tokens} tokens "
            "at once. Use fewer --rows or --new-tokens, or a smaller dtype; shards that are written stay."
        ) from error


def _begin(out: Path, prompts: Sequence[Sequence[int]], settings: WritingSettings, target: TargetIdentity) -> None:
    """Write the manifest of a new folder, or check that of an existing one."""
    digest = hashlib.blake2b(digest_size=12)
    for prompt in prompts:
        digest.update(np.asarray([len(prompt), *prompt], np.int32).tobytes())
    given = asdict(settings)
    texts = given.pop("texts")
    manifest = {
        "target": target.record(),
        "prompts": digest.hexdigest(),
        "settings": json.loads(json.dumps(given)),
        "shards": settings.shards,
        "texts": texts,
    }
    try:
        if out.exists() and any(out.iterdir()):
            found = read_manifest(out)
            if found is None:
                raise UsageError(f"{out} holds other files. Name a new folder by --out.")
            changed = [name for name in ("prompts", "settings") if found.get(name) != manifest[name]]
            if found["target"].get("model") != target.model or found["target"].get("tokenizer") != target.tokenizer:
                changed = ["target", *changed]
            if changed:
                raise UsageError(
                    f"{out} holds texts of other {' and '.join(changed)}; mixed, they could not be written again. "
                    "Go on with the same command, or name another folder by --out."
                )
            manifest["shards"] = max(settings.shards, found["shards"])
        write_manifest(out, manifest)
    except OSError as error:
        raise FileError(f"cannot write to {out}: {error}. Name a folder that is writable.") from error
