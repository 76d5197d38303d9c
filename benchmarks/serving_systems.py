"""The systems of `serving.py`, each in its own process: servers, and the library without a server.

A process is stopped (SIGSTOP) while another one is measured, so that idle systems take no CPU time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from asyncio import run as run_coroutine
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from serving_load import Answer, Request, ask_all

READY_SECONDS = 240
STOP_SECONDS = 30
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


class Process:
    """A running system.

    Attributes:
        name: its name in `SYSTEMS`.
        command: the command that started it, without machine-specific paths.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, log: Path, **pipes: Any) -> None:
        """Start the process with one thread for its passes; its log goes to a file."""
        self.name, self._log = name, log
        hidden = {sys.executable: "python", str(folder): folder.name}
        self.command = [hidden.get(word, Path(word).name if word.startswith("/") else word) for word in command]
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, env=os.environ | threads, stderr=errors, **pipes)

    def pause(self) -> None:
        """Suspend the process until `resume`."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process."""
        self.resume()
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU time used so far, in user and system mode."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_mb(self) -> float:
        """Return the resident memory in megabytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)

    def counters(self) -> dict[str, int]:
        """Return the drafting counters so far; empty if the system has none."""
        return {}

    def failed(self) -> RuntimeError:
        """Return the error to raise if the process ended or does not answer."""
        return RuntimeError(f"{self.name} does not answer; its log ends with:\n{self._log.read_text()[-2000:]}")


class HttpServer(Process):
    """An OpenAI-compatible server."""

    def __init__(self, name: str, folder: Path, scratch: Path) -> None:
        """Start the server and wait until it is ready."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        command, options = SERVERS[name]
        words = command(scratch if name in LLAMACPP else folder, self._port, *options)
        super().__init__(name, words, folder, scratch / f"{name}.log", stdout=subprocess.DEVNULL)
        self._counts = command is speculant_command
        self._model = str(folder) if command is transformers_command else NAME
        deadline = time.monotonic() + READY_SECONDS
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise self.failed()
            time.sleep(0.2)

    def answer(self, asked: Sequence[tuple[str, int]], *, clients: int) -> list[Answer]:
        """Return the answers to prompts with their maximum tokens, sent by `clients` clients."""
        requests = [Request(model=self._model, prompt=prompt, max_tokens=maximum) for prompt, maximum in asked]
        return run_coroutine(ask_all(self._port, requests, clients=clients))

    def counters(self) -> dict[str, int]:
        """Return rounds, drafts, draft tokens and accepted tokens so far; empty for other libraries' servers."""
        if not self._counts:
            return {}
        values = dict(line.rsplit(" ", 1) for line in self._get("/metrics").splitlines() if not line.startswith("#"))
        return {name: int(float(values[f'speculant_{name}_total{{model_name="{NAME}"}}'])) for name in COUNTERS}

    def _healthy(self) -> bool:
        try:
            return bool(self._get("/health"))
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=30) as response:
            return str(response.read().decode())


class Library(Process):
    """`Batch`, called directly by `serving_library.py`, which answers JSON lines."""

    def __init__(self, name: str, folder: Path, scratch: Path) -> None:
        """Start the process and wait until it is ready."""
        script = Path(__file__).parent / "serving_library.py"
        command = [sys.executable, str(script), str(folder), "--method", LIBRARY[name]]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
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
