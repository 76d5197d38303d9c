"""What a GGUF file's header says, and headers that are wrong."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from gguf_bytes import corrupt, gguf_bytes, small_gguf
from speculant.core.errors import ModelError, SpeculantError, UnsupportedError
from speculant.engines.hf.quantized.gguf.header import Header, read_header

FLOAT = ("F32", (1,), bytes(4))


def read(data: bytes) -> Header:
    """Return the header of a file's bytes."""
    return read_header(memoryview(data), Path("model.gguf"))


def test_reads_all_types() -> None:
    """Every type of metadata has its value, and tensors their shapes and places."""
    found = read(small_gguf())
    assert found.metadata["a.f32"] == 1.0
    assert found.metadata["a.bool"] is True
    assert found.metadata["tokens"] == ["a", "é", ""]
    assert found.metadata["types"] == [1, -2, 3]
    assert found.metadata["flags"] == [True, False]
    assert found.metadata["nested"] == [[1, 2], [], [3]]
    info = found.tensors["q8"]
    assert (info.kind, info.shape, info.size, info.start % 32) == ("Q8_0", (3, 64), 3 * 68, 0)


@pytest.mark.parametrize("alignment", [1, 8, 32, 128])
def test_tensors_begin_where_the_alignment_says(alignment: int) -> None:
    """Offsets count from the next multiple of the file's own alignment."""
    data = gguf_bytes(tensors={"a": ("F32", (1,), b"abcd"), "b": ("F32", (1,), b"efgh")}, alignment=alignment)
    info = read(data).tensors["b"]
    assert data[info.start : info.start + info.size] == b"efgh"


def test_reads_version_2() -> None:
    """Files of version 2 have the same header."""
    assert read(gguf_bytes(tensors={"a": FLOAT}, version=2)).tensors["a"].shape == (1,)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gguf_bytes(version=1), "version 1"),
        (gguf_bytes(version=4), "version is 4"),
        (gguf_bytes(version=3 << 24), "big-endian"),
        (gguf_bytes(counts=(1 << 60, 0)), "too small"),
        (gguf_bytes(counts=(0, 1 << 60)), "too small"),
        (gguf_bytes(counts=(0, 1)), "too small"),
        (gguf_bytes({"": ("u8", 1)}), "a key of its metadata is empty"),
        (gguf_bytes({"a": ("u8", 1)}).replace(b"a\0\0\0\0", b"a\x0d\0\0\0"), "type 13"),
        (gguf_bytes({b"\xff": ("u8", 1)}), "a key of its metadata, at byte 32, is not UTF-8"),
        (gguf_bytes({"a": ("text", b"\xff")}), "value of 'a', at byte"),
        (gguf_bytes({"a": ("u8", 1), b"a": ("u8", 1)}), "'a' twice"),
        (gguf_bytes({"a": ("[[[[[[u8]]]]]]", [[[[[[1]]]]]])}), "nested deeper"),
        (gguf_bytes({"a": ("bool", True)}).replace(b"\7\0\0\0\1", b"\7\0\0\0\2"), "neither true nor false"),
        (gguf_bytes({"general.alignment": ("u32", 24)}), "alignment is 24"),
        (gguf_bytes({"general.alignment": ("u32", 0)}), "alignment is 0"),
        (gguf_bytes({"general.alignment": ("text", "a")}), "alignment is a"),
        (gguf_bytes(tensors={"a": ("F32", (1, 1, 1, 1, 1), bytes(4))}), "5 dimensions"),
        (gguf_bytes(tensors={"a": ("F32", (0,), b"")}), r"shape \[0\]"),
        (gguf_bytes(tensors={"a": ("Q8_0", (1, 48), bytes(51))}), r"shape \[1, 48\], which is not possible for Q8_0"),
        (gguf_bytes(tensors={"a": ("F32", (1 << 40, 1 << 40), b"")}), "and the tensor 'a' at byte"),
        (gguf_bytes(tensors={"a": FLOAT}, offsets={"a": 16}), "not at a multiple of 32"),
        (gguf_bytes(tensors={"a": FLOAT, "b": FLOAT}, offsets={"b": 0}), "'b' overlaps"),
        (gguf_bytes(tensors={"a": FLOAT}, offsets={"a": 1 << 63}), "and the tensor 'a' at byte"),
    ],
)  # fmt: skip
def test_refuses_wrong_headers(data: bytes, message: str) -> None:
    """Each check names the file and what is wrong."""
    with pytest.raises((ModelError, UnsupportedError), match=message) as caught:
        read(data)
    assert str(caught.value).startswith("model.gguf ")


def test_refuses_kinds_by_name() -> None:
    """Kinds that are gone are named, and numbers that no kind has are refused."""
    info = struct.pack("<I", 1) + struct.pack("<Q", 1)
    data = gguf_bytes(tensors={"a": FLOAT})
    place = data.index(info) + len(info)
    for code, message in ((31, "Q4_0_4_4"), (99, "kind 99, which is unknown")):
        with pytest.raises(SpeculantError, match=f"the tensor 'a' is of .*{message}"):
            read(data[:place] + struct.pack("<I", code) + data[place + 4 :])


def test_names_are_unique() -> None:
    """Two tensors of one name are refused."""
    data = gguf_bytes(tensors={"a": FLOAT, "b": FLOAT}).replace(b"\1\0\0\0\0\0\0\0b", b"\1\0\0\0\0\0\0\0a")
    with pytest.raises(ModelError, match="two tensors 'a'"):
        read(data)


def test_lengths_allocate_nothing() -> None:
    """A length that the file has no bytes for is refused before memory is taken."""
    whole = gguf_bytes({"a": ("text", "b"), "c": ("[u64]", [1])})
    tracemalloc.start()
    try:
        for place in (whole.index(b"a\x08") + 5, whole.index(b"c\x09") + 9):
            for length in (1 << 24, 1 << 34, (1 << 64) - 1):
                with pytest.raises(ModelError, match="damaged"):
                    read(whole[:place] + struct.pack("<Q", length) + whole[place + 8 :])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_every_truncation_is_noticed() -> None:
    """A file that ends early is refused, wherever it ends."""
    whole = small_gguf().rstrip(b"\0")
    for size in range(4, len(whole) - 32, 7):
        with pytest.raises(ModelError, match=r"model\.gguf is damaged: it"):
            read(whole[:size])


def test_200_corruptions() -> None:
    """Whatever is wrong with a file, it is read or refused by the project's errors, and takes little memory."""
    whole, chance, messages = small_gguf(), random.Random(0), list[str]()
    tracemalloc.start()
    try:
        for _ in range(200):
            data = corrupt(whole, chance)
            try:
                found: Any = read(data)
            except SpeculantError as error:
                messages.append(str(error))
            else:
                assert all(info.start + info.size <= len(data) for info in found.tensors.values())
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert 100 < len(messages) < 200
    assert all(message.startswith("model.gguf ") for message in messages)
