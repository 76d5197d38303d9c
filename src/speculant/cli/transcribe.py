"""`speculant transcribe`: speech to text by Whisper models, with drafts."""

from __future__ import annotations

import json as json_module
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from speculant.cli.binding import Take, bind
from speculant.cli.commands import Command
from speculant.core.errors import UsageError
from speculant.options.drafting import DraftingOptions
from speculant.options.model import ModelOptions

if TYPE_CHECKING:
    from speculant.api.transcription import TranscriptPart

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


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("transcribe", cls=Command, help=HELP, epilog=EXAMPLES)(bind(transcribe))


def transcribe(
    audio: Annotated[str, typer.Argument(metavar="AUDIO", help="WAV, FLAC, OGG or MP3 file")],
    language: Annotated[
        str | None, typer.Option("--language", metavar="NAME", help="spoken language; default: detected by the model")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="transcribe, or translate into English")
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="print one line per segment, with its times")
    ] = False,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="write text and segments as JSON; - prints it instead")
    ] = None,
    *,
    drafting: Annotated[DraftingOptions, Take(without=("head",))],
    model: ModelOptions,
) -> int:
    """Check the options, load the model, transcribe."""
    from speculant.api.transcription import TASKS, read_sound
    from speculant.cli.files import JSON, check_no_input, check_result, check_writable
    from speculant.cli.loading import load_speculator
    from speculant.cli.loading_checks import check_drafting, check_named
    from speculant.cli.terminal import waiting

    if model.model is None:
        raise UsageError("name a Whisper model by --model, such as openai/whisper-small or a folder of one.")
    if task not in (None, *TASKS):
        raise UsageError(f"--task is {' or '.join(TASKS)}, not '{task}'.")
    if drafting.memory is not None:
        check_writable(drafting.memory)
        check_no_input("--memory", drafting.memory, [audio])
    check_result("--json", json, JSON, [audio, drafting.memory])
    if drafting.draft_model and drafting.method is None and drafting.drafter is None:
        drafting = replace(drafting, verifier=drafting.verifier or "sample-then-follow")
    check_drafting(drafting)
    check_named(model, drafting)
    loaded = load_speculator(model, drafting)

    from speculant.api.loading import load_processor
    from speculant.api.transcription import transcribe as decode

    processor = load_processor(model.model, loaded.speculator.model)
    extractor = getattr(processor, "feature_extractor", None)
    sound = read_sound(audio, 16_000 if extractor is None else int(extractor.sampling_rate))
    shown = json != "-"
    try:
        with ExitStack() as status:
            status.enter_context(waiting(f"transcribing {audio}"))

            def show(part: TranscriptPart) -> None:
                status.close()
                for each in part.segments:
                    print(f"[{each.start:8.2f} {each.end:8.2f}] {each.text.strip()}", flush=True)
                if not timestamps:
                    print(part.text, end="", flush=True)

            found = decode(
                loaded.speculator,
                processor,
                sound,
                language=language,
                task=task,
                timestamps=timestamps,
                received=show if shown else None,
            )
    finally:
        if shown and not timestamps:
            print()
        if loaded.memory is not None:
            loaded.speculator.save(loaded.memory)
        loaded.speculator.close()
    record = {"text": found.text, "seconds": found.seconds, "segments": [asdict(each) for each in found.segments]}
    if json == "-":
        print(json_module.dumps(record, ensure_ascii=False))
    elif json is not None:
        with open(json, "w", encoding="utf-8") as file:
            file.write(json_module.dumps(record, ensure_ascii=False, indent=1) + "\n")
    return 0
