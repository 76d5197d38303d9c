"""The answers that a model writes for `speculant base learn`: prompts as ids, progress, and interrupts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant.cli.terminal import count_noun, progress, say
from speculant.core.errors import TokenizerError, UsageError
from speculant.corpus.answering import AnsweringSettings, answer_prompts, fitting_prompts
from speculant.corpus.answers import AnswerFile
from speculant.memory.fingerprint import tokenizer_fingerprint

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.cli.prompts import Prompt


def write_answers(
    speculator: Speculator, prompts: list[Prompt], path: Path, vocabulary: int, settings: AnsweringSettings
) -> KeyboardInterrupt | None:
    """Let the model answer, showing progress, and report how much it wrote; return the interrupt that ended it, if any.

    Raises:
        TokenizerError: the model has no tokenizer.
        UsageError: the prompts do not suit the model, or the file belongs to another model.
        FileError: the answers cannot be written.
    """
    if speculator.tokenizer is None:
        raise TokenizerError("the model has no tokenizer to read prompts with. Name a model with tokenizer.json.")
    ids = encode_prompts(speculator, prompts)
    fitting = fitting_prompts(ids, speculator.engine.capabilities.positions)
    if len(fitting) < len(ids):
        say(f"note: {count_noun(len(ids) - len(fitting), 'prompt')} left out: empty, or too long for the model.")
    file = AnswerFile(path, tokenizer=tokenizer_fingerprint(speculator.tokenizer, vocabulary))
    interrupt = None
    if file.rows:
        found = f"{count_noun(file.tokens, 'token')} of {count_noun(file.rows, 'answer')}"
        say(f"continuing {path}, which has {found}.")
    before, began = file.tokens, time.perf_counter()
    try:
        with progress("answering", settings.tokens, "tokens", done=min(before, settings.tokens or before)) as advance:
            answer_prompts(speculator, fitting, file, settings, advance=advance)
    except KeyboardInterrupt as error:
        interrupt = error
        say("interrupted; building the base from the answers so far. Press Ctrl-C again to end at once.")
    finally:
        file.close()
    seconds = time.perf_counter() - began
    say(f"answers     {count_noun(file.rows, 'answer')}, {count_noun(file.tokens, 'token')} in {path}")
    if file.tokens > before:
        say(f"speed       {(file.tokens - before) / seconds:,.0f} tokens/s over {seconds:.1f} s")
    return interrupt


def encode_prompts(speculator: Speculator, prompts: list[Prompt]) -> list[list[int]]:
    """Return prompts as token ids: as user messages if there is a chat template; of several turns only the first.

    Raises:
        UsageError: a prompt is a chat, and the model has no chat template.
    """
    templated = bool(getattr(speculator.tokenizer, "chat_template", None))
    found: list[list[int]] = []
    for prompt in prompts:
        first = prompt[0] if isinstance(prompt, tuple) else prompt
        if templated:
            found.append(speculator.encode_chat(first if isinstance(first, list) else [message(first)]))
        elif isinstance(first, str):
            found.append(list(speculator.tokenizer(first)["input_ids"]))
        else:
            raise UsageError("the prompts are chats, and the model's tokenizer has no chat template. Give plain texts.")
    return found


def message(text: str) -> dict[str, Any]:
    """Return a user message."""
    return {"role": "user", "content": text}
