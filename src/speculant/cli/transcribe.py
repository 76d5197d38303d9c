"""`speculant transcribe`: speech to text by Whisper models, with drafts."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.core.errors import UsageError
from speculant.options import kinds, option
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator
    from speculant.api.transcription import Transcript, TranscriptPart

HELP = """\
Transcribe a recording of any length with a Whisper model.

The text is written to standard output, window by window as it is decoded, everything else to standard error. It is the
same as without drafts: segments, timestamps and the fallback to higher temperatures are those of transformers. With
--draft-model and no --method, the method is draft-model under the rule sample-then-follow; a draft model that has the
target's encoder reads its states. Requires speculant[media]."""

EXAMPLES = """
speculant transcribe talk.wav --model openai/whisper-small
speculant transcribe talk.mp3 --model your/whisper --language de --timestamps
speculant transcribe talk.flac --model your/whisper --memory talks.speculant
speculant transcribe talk.wav --model your/whisper --draft-model your/small
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribingOptions:
    """What is transcribed, and how it is printed."""

    audio: str = option.option(option.REQUIRED, "WAV, FLAC, OGG or MP3 file", kinds.FILE_NAME)
    language: str | None = option.option(None, "spoken language; default: detected by the model", kinds.name())
    task: str | None = option.option(None, "transcribe, or translate into English", kinds.name())
    timestamps: bool = option.option(False, "print one line per segment, with its times", kinds.FLAG)
    json: str | None = option.option(None, "write text and segments as JSON; - prints it instead", kinds.FILE_NAME)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("transcribe", cls=Command, help=HELP, epilog=EXAMPLES)(bind(transcribe))


def transcribe(
    options: Annotated[TranscribingOptions, Take(arguments={"audio": "AUDIO"})],
    drafting: Annotated[DraftingOptions, Take(without=("head",))],
    model: ModelOptions,
) -> int:
    """Check the options, load the model, transcribe."""
    from speculant.api.transcription import TASKS
    from speculant.cli.files import JSON, check_result, write_record
    from speculant.cli.loading import load_speculator
    from speculant.cli.loading_checks import check_drafting, check_memory, check_named

    if model.model is None:
        raise UsageError("name a Whisper model by --model, such as openai/whisper-small or a folder of one.")
    if options.task not in (None, *TASKS):
        raise UsageError(f"--task is {' or '.join(TASKS)}, not '{options.task}'.")
    check_memory(drafting, [options.audio])
    check_result("--json", options.json, JSON, [options.audio, drafting.memory])
    if drafting.draft_model and drafting.method is None and drafting.drafter is None:
        drafting = replace(drafting, verifier=drafting.verifier or "sample-then-follow")
    check_drafting(drafting)
    check_named(model, drafting)
    loaded = load_speculator(model, drafting)
    try:
        found = decode(loaded.speculator, options, model.model)
    finally:
        if loaded.memory is not None:
            loaded.speculator.save(loaded.memory)
        loaded.speculator.close()
    if options.json is not None:
        segments = [asdict(each) for each in found.segments]
        write_record(options.json, {"text": found.text, "seconds": found.seconds, "segments": segments})
    return 0


def decode(speculator: Speculator, options: TranscribingOptions, name: str) -> Transcript:
    """Transcribe, and print the text while it is decoded unless it is asked for as JSON.

    Args:
        speculator: the loaded model.
        options: the recording, and what is printed.
        name: the model's folder or hub id, whose processor is loaded.
    """
    from speculant.api.loading import load_processor
    from speculant.api.transcription import read_sound
    from speculant.api.transcription import transcribe as transcribe_sound
    from speculant.cli.terminal import waiting

    processor = load_processor(name, speculator.model)
    extractor = getattr(processor, "feature_extractor", None)
    sound = read_sound(options.audio, 16_000 if extractor is None else int(extractor.sampling_rate))
    shown = options.json != "-"
    try:
        with ExitStack() as status:
            status.enter_context(waiting(f"transcribing {options.audio}"))

            def show(part: TranscriptPart) -> None:
                status.close()
                for each in part.segments:
                    print(f"[{each.start:8.2f} {each.end:8.2f}] {each.text.strip()}", flush=True)
                if not options.timestamps:
                    print(part.text, end="", flush=True)

            return transcribe_sound(
                speculator,
                processor,
                sound,
                language=options.language,
                task=options.task,
                timestamps=options.timestamps,
                received=show if shown else None,
            )
    finally:
        if shown and not options.timestamps:
            print()
