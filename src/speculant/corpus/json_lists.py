"""Reads a list of JSON objects one at a time, so that the file need not fit into memory."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

CHUNK = 1 << 20
LONGEST = 64 << 20
BETWEEN = " \t\r\n,"


def read_entries(
    file: BinaryIO, advanced: Callable[[], None], reject: Callable[[str], object]
) -> Iterator[tuple[int, Any]]:
    """Yield the entries of a list, or a value that is not a list, each with its number from 1.

    Args:
        file: UTF-8 file; invalid bytes are replaced.
        advanced: called when more of the file was read.
        reject: called with the reason if the rest cannot be read.
    """
    decoder, parser = codecs.getincrementaldecoder("utf-8-sig")("replace"), json.JSONDecoder()
    text, at, number, ended = "", 0, 0, False

    def read(size: int) -> None:
        nonlocal text, at, ended
        chunk = file.read(size)
        ended = not chunk
        advanced()
        text, at = text[at:] + decoder.decode(chunk, final=ended), 0

    while not text.strip() and not ended:
        read(CHUNK)
    at = len(text) - len(text.lstrip())
    listed = text[at : at + 1] == "["
    at += listed
    while listed or number == 0:
        while at < len(text) and text[at] in BETWEEN:
            at += 1
        if at == len(text) and not ended:
            read(CHUNK)
            continue
        if listed and text[at : at + 1] == "]":
            return
        try:
            value, at = parser.raw_decode(text, at)
        except RecursionError:
            reject("an entry is nested too deeply; the rest is left out.")
            return
        except json.JSONDecodeError as error:
            if ended or len(text) - at > LONGEST:
                reason = f"not JSON ({error.msg})" if ended else f"longer than {LONGEST >> 20} MB"
                reject(f"entry {number + 1} is {reason}; the rest is left out.")
                return
            read(max(CHUNK, len(text) - at))  # doubles, so that long entries are not parsed many times
            continue
        number += 1
        yield number, value
