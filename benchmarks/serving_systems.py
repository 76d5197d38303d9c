"""The systems of `serving.py`, each in its own process: servers, and the library without a server.

A process is stopped (SIGSTOP) while another one is measured, so that idle systems take no CPU time.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from asyncio import run as run_coroutine
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from processes import HttpProcess, Process
from serving_load import Answer, Request, ask_all

NAME = "target"  # the model's name on this library's and llama.cpp's servers
MAX_CLIENTS = 64
POSITIONS = 1024  # of a text on llama.cpp's server
LLAMA_SERVER = "llama-server"
COUNTERS = ("rounds", "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
PREFIX_CACHE = 256 << 20  # bytes, the server's default, for the library without one
# By default transformers takes 60 % of the memory for its cache; 64 x 256 positions are more than the texts need.
PAGED = ("--continuous-batching", "--cb-num-blocks", "64", "--cb-max-batch-tokens", "512")


def speculant_command(folder: Path, port: int, *options: str) -> list[str]:
    """Return the command of this library's server."""
    return [
        *(sys.executable, "-m", "speculant", "serve", str(folder), "--port", str(port)),
        *("--served-model-name", NAME, "--max-concurrency", str(MAX_CLIENTS)),
        *("--dtype", "float32", "--device", "cpu", "--threads", "1", *options),
    ]


def transformers_command(folder: Path, port: int, *options: str) -> list[str]:
    """Return the command of transformers' server."""
    return [
        *(str(Path(sys.executable).parent / "transformers"), "serve", str(folder)),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--device", "cpu", *options),
    ]


def llamacpp_command(folder: Path, port: int, *options: str) -> list[str]:
    """Return the command of llama.cpp's server on the files of `write_gguf_files` in a folder."""
    draft = ["--spec-draft-model", str(folder / "draft.gguf")] if "draft-simple" in options else []
    return [
        *(LLAMA_SERVER, "--model", str(folder / "target.gguf"), "--alias", NAME),
        *("--port", str(port), "--threads", "1", "--parallel", str(MAX_CLIENTS)),
        *("--ctx-size", str(MAX_CLIENTS * POSITIONS), *options, *draft),
    ]


def write_gguf_files(folder: Path, scratch: Path) -> None:
    """Write a folder's target and the bundled draft model in float32, both with the target's vocabulary.

    Raises:
        SystemExit: llama.cpp's server is not installed.
    """
    from speculant.api.loading import bundled_draft_model, load_model
    from speculant.engines.llamacpp.gguf_file import write_gguf

    if shutil.which(LLAMA_SERVER) is None:
        raise SystemExit(f"{LLAMA_SERVER} is not on the PATH; benchmarks/README.md says how to build it.")
    model, tokenizer = load_model(str(folder), dtype="float32", device="cpu")
    write_gguf(model, scratch / "target.gguf", tokenizer=tokenizer)
    draft, _ = load_model(str(bundled_draft_model()), dtype="float32", device="cpu")
    write_gguf(draft, scratch / "draft.gguf", tokenizer=tokenizer)


Command = Callable[..., list[str]]
SERVERS: dict[str, tuple[Command, tuple[str, ...]]] = {
    "speculant": (speculant_command, ()),
    "plain": (speculant_command, ("--method", "none")),
    "transformers": (transformers_command, ()),
    "transformers-paged": (transformers_command, PAGED),
    "llamacpp": (llamacpp_command, ()),
    "llamacpp-ngram": (llamacpp_command, ("--spec-default",)),
    "llamacpp-draft": (llamacpp_command, ("--spec-type", "draft-simple")),
}
LLAMACPP = tuple(name for name, (command, _) in SERVERS.items() if command is llamacpp_command)
LIBRARY = {"library": "mix", "library-plain": "none"}
SYSTEMS = (*SERVERS, *LIBRARY)


class HttpServer(HttpProcess):
    """An OpenAI-compatible server of `SERVERS`."""

    def __init__(self, name: str, folder: Path, scratch: Path) -> None:
        """Start the server and wait until it is ready."""
        command, options = SERVERS[name]
        files = scratch if name in LLAMACPP else folder
        super().__init__(name, lambda port: command(files, port, *options), folder, scratch / f"{name}.log")
        self._counts = command is speculant_command
        self._model = str(folder) if command is transformers_command else NAME

    def answer(self, asked: Sequence[tuple[str, int]], *, clients: int) -> list[Answer]:
        """Return the answers to prompts with their maximum tokens, sent by `clients` clients."""
        requests = [Request(model=self._model, prompt=prompt, max_tokens=maximum) for prompt, maximum in asked]
        return run_coroutine(ask_all(self.port, requests, clients=clients))

    def counters(self) -> dict[str, int]:
        """Return rounds, drafts, draft tokens and accepted tokens so far; empty for other libraries' servers."""
        if not self._counts:
            return {}
        values = dict(line.rsplit(" ", 1) for line in self.get("/metrics").splitlines() if not line.startswith("#"))
        return {name: int(float(values[f'speculant_{name}_total{{model_name="{NAME}"}}'])) for name in COUNTERS}


class Library(Process):
    """`Batch`, called directly by `serving_library.py`, which answers JSON lines."""

    def __init__(self, name: str, folder: Path, scratch: Path) -> None:
        """Start the process and wait until it is ready."""
        script = Path(__file__).parent / "serving_library.py"
        command = [sys.executable, str(script), str(folder), "--method", LIBRARY[name]]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        super().__init__(name, command, folder, scratch / f"{name}.log", **pipes)
        self._read()

    def answer(self, asked: Sequence[tuple[str, int]], *, clients: int) -> list[Answer]:
        """Return the texts after prompts with their maximum tokens, up to `clients` decoded at a time."""
        requests: IO[str] | None = self.process.stdin
        assert requests is not None
        requests.write(json.dumps({"asked": asked, "clients": clients}) + "\n")
        requests.flush()
        return [Answer(**each) for each in self._read()]

    def _read(self) -> Any:
        answers: IO[str] | None = self.process.stdout
        assert answers is not None
        line = answers.readline()
        if not line:
            raise self.failed()
        return json.loads(line)


def start(name: str, folder: Path, scratch: Path) -> HttpServer | Library:
    """Start a system of `SYSTEMS` on the model in a folder; its log, and GGUF files, are in `scratch`.

    Raises:
        RuntimeError: if it did not start, with the end of its log.
    """
    return HttpServer(name, folder, scratch) if name in SERVERS else Library(name, folder, scratch)
