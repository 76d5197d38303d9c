"""Imports llama-cpp-python on demand; llama.cpp's messages are stored instead of printed.

llama.cpp returns null pointers and negative numbers, and writes the reasons to its log. The last lines of that log are
kept for error messages, and all lines go to Python's logger `speculant.llamacpp`, which is quiet by default.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from typing import Any

from speculant.core.errors import UnsupportedError

OLDEST = (0, 3, 36)  # the first release with all fields and functions used here
TOO_NEW = (0, 4)
KEPT_LINES = 20
_LEVELS = {2: logging.DEBUG, 3: logging.INFO}  # other levels are warnings and errors; relevant errors are raised
_INSTALL = "pip install 'speculant[llamacpp]'"


class LogLines:
    """The last warnings and errors of llama.cpp.

    Attributes:
        lines: the last of them, oldest first.
    """

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._logger = logging.getLogger("speculant.llamacpp")
        self._level = 0

    def add(self, level: int, text: bytes | None) -> None:
        """Append a message; level 5 continues the previous one."""
        line = (text or b"").decode("utf-8", "replace").strip()
        self._level = self._level if level == 5 else level
        if self._level in _LEVELS and line.strip("."):
            self.lines.append(line)
            self._logger.log(_LEVELS[self._level], line)

    def reason(self) -> str:
        """Return the first line since `clear` that mentions an error, else the last line; empty if there is none."""
        named = [line for line in self.lines if "error" in line.lower() or "fail" in line.lower()]
        return (named or [*self.lines][-1:] or [""])[0]

    def mentions(self, *words: str) -> bool:
        """Return whether a line since `clear` contains one of the words."""
        return any(word in line.lower() for line in self.lines for word in words)

    def clear(self) -> None:
        """Drop all lines."""
        self.lines.clear()


class Library:
    """llama.cpp, initialised.

    Attributes:
        api: the module `llama_cpp`.
        log: its messages.
    """

    def __init__(self, api: Any) -> None:
        self.api, self.log = api, LogLines()
        self._callback = api.llama_log_callback(lambda level, text, _: self.log.add(level, text))
        api.llama_log_set(self._callback, None)
        api.llama_backend_init()

    @property
    def version(self) -> str:
        """The version of llama-cpp-python."""
        return str(self.api.__version__)


@functools.cache
def load_library() -> Library:
    """Return llama.cpp, of which a process has one instance with one log.

    Raises:
        UnsupportedError: llama-cpp-python is not installed, does not run here or is not a tested version.
    """
    api = import_llamacpp()
    found = tuple(int(part) for part in str(api.__version__).split(".")[:3] if part.isdigit())
    if not OLDEST <= found < TOO_NEW:
        minimum, maximum = (".".join(map(str, version)) for version in (OLDEST, TOO_NEW))
        raise UnsupportedError(
            f"llama-cpp-python {api.__version__} is installed, but versions from {minimum} to below {maximum} are "
            f"supported: {_INSTALL}."
        )
    return Library(api)


def import_llamacpp() -> Any:
    """Import and return the package.

    Raises:
        UnsupportedError: it is not installed, or does not run here.
    """
    try:
        import llama_cpp
    except ImportError as error:
        raise UnsupportedError(
            f"llama.cpp is not installed: {_INSTALL}. It is built from source, which takes a C++ compiler and some "
            "minutes."
        ) from error
    except (OSError, RuntimeError) as error:  # the library was built for another machine
        raise UnsupportedError(
            f"llama.cpp is installed but does not run here: {error}. Build it again: pip install --force-reinstall "
            "--no-cache-dir 'speculant[llamacpp]'."
        ) from error
    return llama_cpp
