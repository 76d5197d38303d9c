"""Frozen bases: the user's folder of bases, matching them to a tokenizer, and the base bundled with the package.

A base is a memory file of kind `mix-base`: read-only, built from a corpus by `speculant corpus build`. The folder holds
copies that the user has added; nothing is ever downloaded into it.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from speculant.core.errors import CorruptMemoryError, FileError, ForeignMemoryError, SpeculantError, UsageError
from speculant.core.folders import data_folder
from speculant.memory.aside import write_aside
from speculant.memory.file import BASE, read_any_memory, read_header

KIND = BASE
VARIABLE = "SPECULANT_BASES"
SUFFIX = ".speculant"
BUNDLED = "bundled"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBase:
    """A base in the user's folder, as described by its header.

    Attributes:
        name: name of the file without its suffix.
        path: path of the file.
        tokenizer: fingerprint of the tokenizer whose ids it holds.
        size: size of the file in bytes.
        facts: facts from its header: tokens, entries, sources, license and others.
    """

    name: str
    path: Path
    tokenizer: str
    size: int
    facts: Mapping[str, Any]


def bases_folder() -> Path:
    """Return the folder of bases: $SPECULANT_BASES, or `speculant/bases` among the user's data.

    Raises:
        FileError: the user has no home folder.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    try:
        return data_folder() / "bases"
    except OSError as error:
        raise FileError(f"there is no folder for bases ({error}). Set one with ${VARIABLE}.") from error


def find_bundled_base() -> Path:
    """Return the path of the bundled base, built from stories with the bundled model's tokenizer."""
    return Path(str(files("speculant") / "models" / "stories" / f"base{SUFFIX}"))


def find_base(name: str | Path) -> Path:
    """Return the file of a base: a path, or "bundled" for the package's own unless a file has that name.

    Raises:
        FileError: there is no such file.
    """
    path = Path(name)
    path = find_bundled_base() if str(name) == BUNDLED and not path.exists() else path
    if not path.exists():
        raise FileError(
            f"there is no base {name}. Name a base file; `speculant base list` shows those that are found "
            "automatically."
        )
    return path


def find_bases(tokenizer: str, *, folder: Path | None = None) -> list[Path]:
    """Return the bases of a tokenizer, sorted by name; reads only headers, and warns of unreadable files.

    Args:
        tokenizer: fingerprint of the tokenizer.
        folder: folder to search; None for the user's folder, which need not exist.
    """
    if folder is None:
        try:
            folder = bases_folder()
        except FileError as error:  # a user without a home has no bases
            logger.warning("%s", error)
            return []
    return [base.path for base in list_bases(folder, logger.warning) if base.tokenizer == tokenizer]


def list_bases(folder: Path, reject: Callable[[str], object]) -> list[KeptBase]:
    """Return the bases of a folder, sorted by name.

    Args:
        folder: the folder, which need not exist.
        reject: called with a message for each file that is not a base, is damaged or cannot be read.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and not path.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        reject(f"cannot read the folder of bases {folder}: {error.strerror}.")
        return []
    found = []
    for path in paths:
        try:
            found.append(read_base_header(path))
        except SpeculantError as error:
            reject(f"{error} It is left out of the bases.")
        except (KeyError, TypeError, ValueError):  # an intact header, but not one that Speculant writes
            reject(f"{path} has a header of an unknown form. It is left out of the bases.")
    return found


def read_base_header(path: Path) -> KeptBase:
    """Read the header of a base, without its arrays.

    Raises:
        FileError: there is no such file, or it cannot be read.
        CorruptMemoryError: it is not a memory file, its header is damaged, or it is truncated.
        ForeignMemoryError: it is a memory of another kind, or of a newer version.
    """
    if path.exists() and not path.is_file():  # reading a pipe would wait forever
        raise FileError(f"cannot read {path}: it is not a regular file.")
    header, body = read_header(path)
    if header["kind"] != KIND:
        raise ForeignMemoryError(
            f"{path} holds a memory of kind '{header['kind']}', not a base. "
            "`speculant corpus build --kind mix-base` makes one."
        )
    size, arrays = path.stat().st_size, header["arrays"].values()
    ends = [each["offset"] + np.dtype(each["dtype"]).itemsize * int(np.prod(each["shape"])) for each in arrays]
    if body + max(ends, default=0) > size:
        raise CorruptMemoryError(f"{path} is cut short. Restore a copy, or build it again.")
    name = path.name.removesuffix(SUFFIX)
    return KeptBase(name=name, path=path, tokenizer=header["tokenizer"], size=size, facts=header["facts"])


def add_base(path: Path, *, folder: Path, name: str | None = None, replace: bool = False) -> KeptBase:
    """Copy a base into a folder atomically, after verifying all of its checksums.

    Args:
        path: the base.
        folder: the folder, created if it does not exist.
        name: its name there; None for the file's own name without its suffix.
        replace: whether a base of that name may be replaced.

    Raises:
        UsageError: the name is not a file name, or is taken.
        FileError, CorruptMemoryError, ForeignMemoryError: the file is not a base, is damaged, or cannot be copied.
    """
    name = path.name.removesuffix(SUFFIX) if name is None else name.removesuffix(SUFFIX)
    target = folder / _file_name(name)
    if target.exists() and not replace:
        raise UsageError(f"a base '{name}' exists already. Choose another name with --name, or add --force.")
    read_base_header(path)
    read_any_memory(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as file, write_aside(target) as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
    except OSError as error:
        raise FileError(
            f"cannot copy {path} to {target}: {error.strerror}. Nothing was changed; make room, or set another folder "
            f"with ${VARIABLE}."
        ) from error
    return read_base_header(target)


def remove_base(name: str, *, folder: Path) -> Path:
    """Delete a base from a folder and return its path; processes that have mapped it keep it until they end.

    Raises:
        UsageError: there is no base of that name.
        FileError: the file cannot be deleted.
    """
    names = [name, name.removesuffix(SUFFIX) + SUFFIX]
    path = next((folder / each for each in names if each == Path(each).name and (folder / each).is_file()), None)
    if path is None:
        known = [base.name for base in list_bases(folder, lambda _: None)]
        there = f"There are: {', '.join(known)}." if known else f"There are none in {folder}."
        raise UsageError(f"there is no base '{name}'. {there}")
    try:
        path.unlink()
    except OSError as error:
        raise FileError(f"cannot delete {path}: {error.strerror}.") from error
    return path


def _file_name(name: str) -> str:
    if not name or name != Path(name).name or name.startswith(".") or not name.isprintable():
        raise UsageError(f"a base cannot be called '{name}': the name is empty, hidden or a path. Choose another.")
    return name + SUFFIX
