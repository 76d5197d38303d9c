"""The options of `speculant generate`."""

from __future__ import annotations

from dataclasses import dataclass

from speculant.core.errors import UsageError
from speculant.options import kinds, option


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """What is continued, and what is shown.

    Raises:
        UsageError: they do not go together.
    """

    prompt: str | None = option.option(None, "text to continue; - reads standard input", kinds.name())
    prompts: str | None = option.option(
        None,
        "many prompts: .jsonl rows or a .json list of texts, of objects with prompt, question or turns, or of chat "
        "messages; any other file is read as one prompt a line",
        kinds.FILE_NAME,
    )
    batch: int = option.option(1, "with --prompts: decode up to N at a time", kinds.whole(1))
    chat: bool = option.option(False, "send the prompt as a user message, in the model's chat template", kinds.FLAG)
    image: tuple[str, ...] = option.option(
        (), "image to put before the prompt, as a chat message; may be repeated", kinds.FILE_NAME, several=True
    )
    audio: tuple[str, ...] = option.option(
        (), "recording to put before the prompt; may be repeated, like --image", kinds.FILE_NAME, several=True
    )
    compare: bool = option.option(False, "also decode without drafts, in turns: speed-up, and same tokens?", kinds.FLAG)
    color: bool = option.option(False, "color tokens on a terminal by their origin; NO_COLOR disables it", kinds.FLAG)
    json: str | None = option.option(None, "write the result as JSON; - prints it instead of the text", kinds.FILE_NAME)
    verbose: bool = option.option(False, "report times, drafts, sizes and threads", kinds.FLAG, aliases=("-v",))

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.prompts is None):
            raise UsageError("give either a PROMPT (- reads standard input) or a file of prompts by --prompts.")
        if (self.image or self.audio) and (self.prompts is not None or self.compare):
            raise UsageError("--image and --audio are for one PROMPT, without --compare.")
        if self.batch > 1 and (self.prompts is None or self.compare or self.color):
            raise UsageError(
                "--batch is for --prompts, without --compare and --color; `speculant bench --batch` compares."
            )

    @property
    def many(self) -> bool:
        """Whether the prompts come from a file."""
        return self.prompts is not None
