"""The libraries in a wheel, one for each instruction set level.

A list next to them has the digest of the sources that they were made from and a digest of each file: a damaged library
could load and crash later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from speculant.engines.hf.cpu.compiling import FOLDER, LEVELS, BuildError, source_digest

PACKAGED = FOLDER / "libraries"
LIST = "libraries.json"


def find_library(folder: Path, flags: Collection[str]) -> Path | None:
    """Return the library of the highest level that a processor supports; None in a source checkout without any.

    Args:
        folder: folder of the libraries, `PACKAGED`.
        flags: the processor's flags, as in /proc/cpuinfo.

    Raises:
        BuildError: there are libraries, but none is usable.
    """
    try:
        listed = json.loads((folder / LIST).read_text(encoding="utf-8"))
        digests: Mapping[str, str] = dict(listed["libraries"])
        sources = listed["sources"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(f"the package's {LIST} cannot be read ({error})") from error
    if sources != source_digest():
        raise BuildError("the package's sources are not those of its libraries")
    supported = [level.name for level in LEVELS if level.name in digests and level.is_supported(flags)]
    if not supported:
        raise BuildError(f"the package has no library for this processor, only for {', '.join(digests)}")
    library = folder / f"{supported[0]}.so"
    try:
        found = _digest(library)
    except OSError as error:
        raise BuildError(f"the package's library {library.name} cannot be read ({error})") from error
    if found != digests[supported[0]]:
        raise BuildError(f"the package's library {library.name} is damaged")
    return library


def write_list(folder: Path, libraries: Iterable[Path]) -> None:
    """Write the list of libraries that were just compiled from the sources."""
    listed = {"sources": source_digest(), "libraries": {library.stem: _digest(library) for library in libraries}}
    (folder / LIST).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")


def _digest(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
