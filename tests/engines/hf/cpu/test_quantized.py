"""Quantised products for every instruction set: the same bits for any of them, any number of rows and of threads."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from speculant.engines.hf.cpu.build import KINDS, SIGNATURES, BuildError, load_native, processor
from speculant.engines.hf.cpu.compiling import FOLDER, LINKING
from speculant.engines.hf.quantized.weight import GroupedValues, GroupScales, QuantizedWeight, pack

pytestmark = pytest.mark.slow  # compiles the sources for each instruction set
AVX2 = ("avx2", "fma", "f16c")
BUILDS = {  # flags of the compiler, and what the processor must have
    "portable": (("-march=x86-64",), ()),
    "avx2": (("-march=haswell",), AVX2),
    "vnni, 256 bits": (("-march=haswell", "-mavx512vl", "-mavx512vnni"), (*AVX2, "avx512vl", "avx512_vnni")),
    "vnni, 512 bits": (("-march=haswell", "-mavx512bw", "-mavx512vnni"), (*AVX2, "avx512bw", "avx512_vnni")),
    "amx, emulated": (("-march=haswell", "-include", str(Path(__file__).with_name("emulated_amx.h"))), AVX2),
}


@pytest.fixture(scope="module", params=BUILDS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the functions, compiled for an instruction set; skip where it cannot run."""
    flags, needed = BUILDS[request.param]
    if missing := set(needed) - set(processor().split()):
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    return compile_library(tmp_path_factory.mktemp("quantized"), *flags)


@pytest.fixture(scope="module")
def native() -> ctypes.CDLL:
    """Return the functions as they are compiled for this processor."""
    try:
        return load_native()
    except BuildError as error:
        pytest.skip(str(error))


def compile_library(folder: Path, *flags: str) -> ctypes.CDLL:
    """Compile the functions with flags of our own."""
    objects = []
    for name in ("quantized", "quantized_rows"):
        objects.append(str(folder / f"{name}.o"))
        command = ["g++", "-std=c++17", "-O1", "-w", "-fPIC", "-fopenmp", *flags, "-c", str(FOLDER / f"{name}.cpp")]
        subprocess.run([*command, "-o", objects[-1]], check=True)
    subprocess.run(["g++", *LINKING, *objects, "-o", str(folder / "library.so")], check=True)
    loaded = ctypes.CDLL(str(folder / "library.so"))
    for name in ("quantized_linear", "quantized_rows"):
        getattr(loaded, name).argtypes = [KINDS[kind] for kind in SIGNATURES[name][0]]
    return loaded


def multiply(
    library: ctypes.CDLL, weight: QuantizedWeight, x: Tensor, bias: Tensor | None, *, keep: bool, threads: int = 1
) -> Tensor:
    y, struct = torch.full((len(x), weight.outs), torch.nan), weight.arguments()
    at = None if bias is None else bias.data_ptr()
    library.quantized_linear(ctypes.byref(struct), x.data_ptr(), at, y.data_ptr(), len(x), keep, threads)
    return y


def matrices() -> list[QuantizedWeight]:
    """Return matrices of all groups, kinds of scales, minima and tables, some at the ends of their ranges."""
    found = []
    kinds = (torch.float32, torch.float16, torch.int8)
    for bits, group, kind, low in itertools.product((4, 8), (16, 32, 64, 128), kinds, (False, True)):
        outs, k = (21, 256) if kind is torch.int8 else (35, 172)
        number = torch.float32 if low and group == 64 else kind  # minima may be of another kind than scales
        found.append(
            pack(
                GroupedValues(
                    values=torch.randint(0, 1 << bits, (outs, k), dtype=torch.uint8),
                    bits=bits,
                    group=group,
                    scales=_numbers(outs, k, group, kind),
                    minima=_numbers(outs, k, group, number) if low else None,
                    offset=0 if low else 128 if bits == 4 and group == 32 else 1 << bits - 1,
                    table=torch.randint(0, 256, (16,), dtype=torch.uint8) if bits == 4 and group == 32 else None,
                )
            )
        )
    for value, offset in ((0, 128), (255, 128), (255, 0), (255, 255), (0, 255)):  # the largest integer sums
        values = torch.full((16, 256), value, dtype=torch.uint8)
        found.append(pack(GroupedValues(values=values, bits=8, group=128, scales=_ones(16, 2), offset=offset)))
    values = torch.full((16, 256), 15, dtype=torch.uint8)
    found.append(pack(GroupedValues(values=values, bits=4, group=128, scales=_ones(16, 2), offset=0)))
    for group, largest, offset, low in ((16, 63, 32, False), (32, 31, 0, True), (128, 63, 0, True)):
        values = torch.randint(0, largest + 1, (35, 256), dtype=torch.uint8)
        values[:3] = largest
        scales, minima = (_numbers(35, 256, group, torch.float16) for _ in range(2))
        found.append(
            pack(
                GroupedValues(
                    values=values,
                    bits=8,
                    group=group,
                    scales=scales,
                    minima=minima if low else None,
                    offset=offset,
                    largest=largest,
                )
            )
        )
    return found


def _numbers(outs: int, k: int, group: int, kind: torch.dtype) -> GroupScales:
    numbers = torch.randn(outs, -(-k // group))
    if kind is not torch.int8:
        return GroupScales(numbers=numbers.to(kind))
    return GroupScales(numbers=(numbers * 20).to(kind), factors=torch.randn(outs, k // 256).half())


def _ones(outs: int, groups: int) -> GroupScales:
    return GroupScales(numbers=torch.ones(outs, groups))


def inputs(rows: int, k: int) -> Tensor:
    """Return rows of all sizes: zeros, extremes, tiny and huge numbers among ordinary ones."""
    x = torch.randn(rows, k)
    x[1::7] *= 1e-30
    x[2::7] = 0
    x[3::7] = x[3::7].sign()  # every number at the largest magnitude
    x[4::7] = 1
    x[5::7, ::3] *= 1e6
    return x


@pytest.mark.parametrize(("rows", "keep"), [(11, False), (11, True), (27, False)])
def test_instruction_sets_agree(library: ctypes.CDLL, native: ctypes.CDLL, rows: int, *, keep: bool) -> None:
    """Guards the arithmetic that quantized.h states: all layouts give the same bits for every instruction set."""
    for weight in matrices():
        x, bias = inputs(rows, weight.k), torch.randn(weight.outs)
        expected = multiply(native, weight, x, bias, keep=keep)
        assert torch.equal(multiply(library, weight, x, bias, keep=keep), expected)
        assert expected.isfinite().all()


@pytest.mark.parametrize("keep", [False, True])
def test_rows_are_independent(library: ctypes.CDLL, *, keep: bool) -> None:
    """Guards drafts: a row has the same result alone as among up to 300, for any number of threads."""
    for count, outs, k, bits, group, low, largest in (
        (128, 1, 1, 8, 32, False, 255),
        (128, 150, 300, 4, 32, True, 15),
        (300, 20, 1152, 8, 16, False, 255),
        (128, 150, 300, 8, 32, True, 63),
    ):
        weight = pack(
            GroupedValues(
                values=torch.randint(0, largest + 1, (outs, k), dtype=torch.uint8),
                bits=bits,
                group=group,
                scales=_numbers(outs, k, group, torch.float16),
                minima=_numbers(outs, k, group, torch.float16) if low else None,
                offset=8,
                largest=largest,
            )
        )
        x, bias = inputs(count, k), torch.randn(outs)
        whole = multiply(library, weight, x, bias, keep=keep)
        exact = x.double() @ weight.dequantize().double().T + bias
        size = x.double().abs() @ weight.dequantize().double().abs().T + 1
        assert ((whole - exact).abs() <= (1e-5 if keep else 1e-2) * size).all()
        for rows in range(65):
            assert torch.equal(multiply(library, weight, x[:rows], bias, keep=keep), whole[:rows])
        for threads in (2, 3, 4):
            assert torch.equal(multiply(library, weight, x, bias, keep=keep, threads=threads), whole)
        for some in (slice(5, 8), slice(count - 45, count), slice(count - 30, count - 15)):
            assert torch.equal(multiply(library, weight, x[some].contiguous(), bias, keep=keep), whole[some])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so(library: ctypes.CDLL, value: float, *, keep: bool) -> None:
    """Guards overflows in a model: they reach the output of their row, and no other row."""
    for weight in matrices():
        x, others = torch.randn(20, weight.k), [row for row in range(20) if row != 2]
        expected = multiply(library, weight, x, None, keep=keep)
        x[2, weight.k - 3] = value
        found = multiply(library, weight, x, None, keep=keep)
        assert not found[2].isfinite().any()
        assert torch.equal(found[others], expected[others])


def test_matrices_share_the_rows_of_a_call(library: ctypes.CDLL) -> None:
    """Guards calls for several matrices of different forms: each has the result of a call of its own."""
    form = {"bits": 8, "values": torch.randint(0, 256, (35, 172), dtype=torch.uint8)}
    weights = [
        pack(GroupedValues(**form, group=group, scales=_numbers(35, 172, group, torch.float16), offset=offset))
        for group, offset in ((16, 128), (32, 128), (32, 7))
    ]
    structs, x = [weight.arguments() for weight in weights], inputs(20, 172)
    found = [torch.full((20, 35), torch.nan) for _ in weights]
    addresses = ctypes.c_void_p * len(weights)
    library.quantized_linears(
        addresses(*(ctypes.addressof(struct) for struct in structs)),
        None,
        addresses(*(y.data_ptr() for y in found)),
        len(weights),
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_int64(len(x)),
        0,
        1,
    )
    for weight, y in zip(weights, found, strict=True):
        assert torch.equal(y, multiply(library, weight, x, None, keep=False))


def test_lookups_agree(library: ctypes.CDLL) -> None:
    """Guards embeddings: rows have the bits of the dequantised matrix."""
    for weight in matrices():
        rows, struct = torch.arange(weight.outs - 1, -1, -1), weight.arguments()
        y = torch.empty(weight.outs, weight.k)
        library.quantized_rows(ctypes.byref(struct), rows.data_ptr(), len(rows), y.data_ptr())
        assert torch.equal(y, weight.dequantize()[rows])


def test_tile_shapes_of_other_libraries_are_restored(library: ctypes.CDLL) -> None:
    """Guards llama.cpp and others that configure the tiles of a thread once and rely on that."""
    if not hasattr(library, "set_tile_shapes"):
        pytest.skip("made without the emulation of tiles")
    weight = pack(GroupedValues(values=torch.ones(16, 64, dtype=torch.uint8), bits=8, group=32, scales=_ones(16, 2)))
    shapes, found = (torch.zeros(128, dtype=torch.uint8) for _ in range(2))
    first = -shapes.data_ptr() % 64
    shapes[first], shapes[first + 16 : first + 32 : 2], shapes[first + 48 : first + 56] = 1, 48, 7
    library.set_tile_shapes(ctypes.c_void_p(shapes[first:].data_ptr()))
    multiply(library, weight, torch.ones(20, 64), None, keep=False)
    library.get_tile_shapes(ctypes.c_void_p(found[first:].data_ptr()))
    assert torch.equal(found[first : first + 64], shapes[first : first + 64])


def test_instructions_are_built_where_the_compiler_knows_them(tmp_path: Path) -> None:
    """Guards code for processors that are not here: it compiles, to the instruction that it is made for."""
    for flag, instruction in (("-mavxvnni", "vpdpbusd"), ("-mamx-int8", "tdpbssd")):
        command = ["g++", "-std=c++17", "-O1", "-w", "-march=haswell", flag, "-mamx-tile", "-S"]
        command.append(str(FOLDER / "quantized.cpp"))
        done = subprocess.run([*command, "-o", str(tmp_path / "code.s")], capture_output=True, text=True, check=False)
        if "unrecognized" in done.stderr:
            pytest.skip(f"this compiler does not know {flag}")
        assert not done.returncode, done.stderr
        assert instruction in (tmp_path / "code.s").read_text(encoding="utf-8")
