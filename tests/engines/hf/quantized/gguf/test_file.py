"""GGUF files as models see them."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gguf_bytes import corrupt, gguf_bytes, random_blocks, small_gguf, write_shards
from models import deep_model
from speculant.core.errors import FileError, ModelError, ModelNotFoundError, SpeculantError, UnsupportedError
from speculant.engines.hf.quantized.gguf.blocks import unpack
from speculant.engines.hf.quantized.gguf.file import GgufFile, open_gguf
from speculant.engines.llamacpp.gguf_file import write_gguf
from speculant.engines.llamacpp.quantize import quantize


@pytest.fixture
def small(tmp_path: Path) -> GgufFile:
    """Return a file with tensors of several kinds."""
    (tmp_path / "model.gguf").write_bytes(small_gguf())
    return open_gguf(tmp_path / "model.gguf")


def test_reads_floats(small: GgufFile) -> None:
    """Tensors of floats keep their dtype and shape, and are views of the file."""
    assert small.tensors["norm"].floats().tolist() == [1, 2, 3, 4]
    assert torch.equal(small.tensors["half"].floats(), torch.arange(6).half().reshape(2, 3))
    assert torch.equal(small.tensors["brain"].floats(), torch.tensor([1, 2, -3], dtype=torch.bfloat16))
    assert small.tensors["norm"].floats().data_ptr() == small.tensors["norm"].floats().data_ptr()


def test_reads_floats_that_are_not_aligned(tmp_path: Path) -> None:
    """Floats that begin at an odd byte are copied."""
    data = gguf_bytes(tensors={"a": ("F32", (1,), struct.pack("<f", 5))}, alignment=1)
    for padding in range(4):
        longer = gguf_bytes({"k": ("text", "x" * padding)}, {"a": ("F32", (1,), data[-4:])}, alignment=1)
        (tmp_path / "model.gguf").write_bytes(longer)
        assert open_gguf(tmp_path / "model.gguf").tensors["a"].floats().tolist() == [5]


def test_reads_quantised_matrices(small: GgufFile) -> None:
    """A matrix has the values of its blocks; an expert's matrix is a part of a tensor; nothing is lost by a release."""
    assert torch.equal(small.tensors["q8"].data.reshape(3, -1), random_blocks("Q8_0", 3, 64))
    expected = unpack(random_blocks("MXFP4", 6, 32), "MXFP4", 6, 32).dequantize()
    small.tensors["experts"].release()
    for index in (0, 1):
        part = small.tensors["experts"].part(index)
        assert torch.equal(part.read_packed().dequantize(), expected[3 * index : 3 * index + 3])
    with pytest.raises(IndexError):
        small.tensors["experts"].part(2)


def test_released_bytes_are_read_again(tmp_path: Path) -> None:
    """Memory that was returned to the system comes back from the file."""
    data = random_blocks("Q8_0", 64, 1024)
    (tmp_path / "model.gguf").write_bytes(gguf_bytes(tensors={"a": ("Q8_0", (64, 1024), data.numpy().tobytes())}))
    tensor = open_gguf(tmp_path / "model.gguf").tensors["a"]
    for _ in range(2):
        assert torch.equal(tensor.data.reshape(data.shape), data)
        tensor.release()


def test_refuses_what_is_no_quantised_matrix(tmp_path: Path, small: GgufFile) -> None:
    """Kinds without a layout are named with the tensor and the way out, and do not keep the file from being opened."""
    data = gguf_bytes(tensors={"blk.0.a": ("IQ2_XS", (1, 256), bytes(74)), "b": ("I8", (1,), bytes(1))})
    (tmp_path / "other.gguf").write_bytes(data)
    other = open_gguf(tmp_path / "other.gguf")
    with pytest.raises(UnsupportedError, match=r"'blk\.0\.a' of .*other\.gguf is IQ2_XS.*Q4_K.*--engine llamacpp"):
        other.tensors["blk.0.a"].read_packed()
    with pytest.raises(UnsupportedError, match=r"'experts' of .* has the shape \[2, 3, 32\]"):
        small.tensors["experts"].read_packed()
    with pytest.raises(UnsupportedError, match=r"'norm' of .* is F32"):
        small.tensors["norm"].read_packed()
    with pytest.raises(UnsupportedError, match=r"'q8' of .* is Q8_0"):
        small.tensors["q8"].floats()


def test_packs_for_the_kernels(small: GgufFile) -> None:
    """A matrix in the kernels' order has the same values, in the order of rows that is asked for."""
    expected = unpack(random_blocks("Q8_0", 3, 64), "Q8_0", 3, 64).dequantize()
    assert torch.equal(small.tensors["q8"].read_packed().dequantize(), expected)
    order = torch.tensor([2, 0, 1])
    assert torch.equal(small.tensors["q8"].read_packed(order=order).dequantize(), expected[order])


def test_metadata_is_checked(small: GgufFile) -> None:
    """A key that is missing or of another type is named."""
    assert small.read("general.architecture", str) == "llama"
    assert small.read("a.bool", bool) is True
    assert small.read("a.u8", int) == 1
    with pytest.raises(ModelError, match=r"model\.gguf cannot be used: 'llama.x' is missing"):
        small.read("llama.x", int)
    with pytest.raises(ModelError, match=r"'tokens' is .*, not of the type int"):
        small.read("tokens", int)
    with pytest.raises(ModelError, match=r"'a\.bool' is True, not of the type int"):
        small.read("a.bool", int)


@pytest.mark.parametrize("number", [0, 2])
def test_any_file_of_several_opens_the_model(tmp_path: Path, number: int) -> None:
    """All files of a model are found by the name of any."""
    found = open_gguf(write_shards(tmp_path)[number])
    assert found.path == tmp_path / "model-00001-of-00003.gguf"
    assert found.metadata["general.architecture"] == "llama"
    assert [tensor.floats().item() for tensor in found.tensors.values()] == [0, 1, 2]
    assert list(found.tensors) == ["t0", "t1", "t2"]


def test_refuses_files_that_do_not_belong_together(tmp_path: Path) -> None:
    """Missing files, files of other models, files in a wrong place and renamed ones are told apart."""
    paths = write_shards(tmp_path)
    first, second, _ = (path.read_bytes() for path in paths)
    paths[1].unlink()
    with pytest.raises(ModelNotFoundError, match=r"3 files of a model, and model-00002-of-00003\.gguf is missing"):
        open_gguf(paths[0])
    paths[1].write_bytes(first)
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.gguf is not .*that of file 1"):
        open_gguf(paths[0])
    paths[1].write_bytes(gguf_bytes())
    with pytest.raises(ModelError, match="its header does not say which of several files it is"):
        open_gguf(paths[0])
    paths[1].write_bytes(second.replace(b"t1", b"t0"))
    with pytest.raises(ModelError, match=r"model-00001-of-00003\.gguf has the tensor 't0' as well"):
        open_gguf(paths[2])
    key = b"split.tensors.count\5\0\0\0"
    paths[1].write_bytes(second.replace(key + b"\3", key + b"\4"))
    with pytest.raises(ModelError, match=r"'split\.tensors\.count' differs from model-00001"):
        open_gguf(paths[0])
    paths[1].write_bytes(second)
    for path in paths:
        path.write_bytes(path.read_bytes().replace(key + b"\3", key + b"\4"))
    with pytest.raises(ModelError, match="have 3 of 4 tensors"):
        open_gguf(paths[0])
    paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match="one of the 3 files of a model, which must be named like"):
        open_gguf(tmp_path / "model.gguf")


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    """Missing and empty files, folders, and numbers of files that are none are refused."""
    with pytest.raises(ModelNotFoundError):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises((ModelNotFoundError, FileError)):
        open_gguf(tmp_path)
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match="not a GGUF file"):
        open_gguf(tmp_path / "empty.gguf")
    (tmp_path / "odd.gguf").write_bytes(gguf_bytes({"split.count": ("text", "a")}))
    with pytest.raises(ModelError, match=r"'split\.count' is 'a'"):
        open_gguf(tmp_path / "odd.gguf")


def test_200_corruptions(tmp_path: Path) -> None:
    """A damaged file is refused by the project's errors, or all its tensors can be read."""
    whole, chance, path, refused = small_gguf(), random.Random(1), tmp_path / "model.gguf", 0
    for _ in range(200):
        path.write_bytes(corrupt(whole, chance))
        try:
            for tensor in open_gguf(path).tensors.values():
                if not tensor.is_quantized:
                    tensor.floats()
                elif len(tensor.shape) == 3:
                    tensor.part(0).read_packed()
                else:
                    tensor.read_packed()
        except SpeculantError:
            refused += 1
    assert 100 < refused < 200


def test_reads_what_the_package_writes(tmp_path: Path) -> None:
    """Files of the package `gguf`, split ones too, have the metadata and tensors that its own reader finds."""
    gguf = pytest.importorskip("gguf")
    writer: Any = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    writer.add_uint32("llama.block_count", 1)
    writer.add_float32("llama.eps", 1e-5)
    writer.add_array("tokenizer.ggml.tokens", ["a", "ĠÄ"])
    writer.add_array("tokenizer.ggml.scores", [1.5, -2.0])
    writer.add_bool("flag", True)
    for name, kind in (("a", "Q6_K"), ("b", "Q4_0"), ("c", "IQ4_XS")):
        blocks = random_blocks(kind, 4, 512).numpy()
        writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.add_tensor("d", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("*.gguf"))
    assert len(paths) == 2
    found, theirs = open_gguf(paths[1]), [gguf.GGUFReader(path) for path in paths]
    fields = {key: field.contents() for key, field in theirs[0].fields.items() if not key.startswith("GGUF.")}
    assert dict(found.metadata) == fields
    tensors = [tensor for reader in theirs for tensor in reader.tensors]
    assert list(found.tensors) == [tensor.name for tensor in tensors]
    for tensor in tensors:
        ours = found.tensors[tensor.name]
        assert (ours.kind, ours.start, ours.size) == (tensor.tensor_type.name, tensor.data_offset, tensor.n_bytes)
        assert ours.shape == tuple(reversed(tensor.shape.tolist()))
        assert ours.data.numpy().tobytes() == tensor.data.tobytes()


def test_reads_what_llama_cpp_quantises(tmp_path: Path) -> None:
    """A file of llama.cpp's own, with several kinds, has the values that the package `gguf` finds in it."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("llama_cpp")
    model = deep_model("llama", hidden_size=256, intermediate_size=512)
    write_gguf(model, tmp_path / "float.gguf")
    quantize(tmp_path / "float.gguf", tmp_path / "model.gguf", "q4_k", threads=1)
    found = open_gguf(tmp_path / "model.gguf").tensors
    assert {tensor.kind for tensor in found.values()} == {"Q4_K", "Q6_K", "F32"}
    for theirs in gguf.GGUFReader(tmp_path / "model.gguf").tensors:
        ours = found[theirs.name]
        values = ours.read_packed().dequantize() if ours.is_quantized else ours.floats()
        assert np.array_equal(values.numpy(), gguf.quants.dequantize(theirs.data, theirs.tensor_type))
