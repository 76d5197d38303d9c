"""Quantises GGUF files with llama.cpp itself."""

from __future__ import annotations

import ctypes
from pathlib import Path

from speculant.core.errors import FileError, ModelError, UnsupportedError
from speculant.engines.llamacpp.file import check_file
from speculant.engines.llamacpp.library import load_library

FORMATS = {  # llama.cpp's LLAMA_FTYPE_* by their common names
    "f32": "ALL_F32",
    "f16": "MOSTLY_F16",
    "bf16": "MOSTLY_BF16",
    "q8_0": "MOSTLY_Q8_0",
    "q6_k": "MOSTLY_Q6_K",
    "q5_k": "MOSTLY_Q5_K_M",
    "q4_k": "MOSTLY_Q4_K_M",
    "q4_0": "MOSTLY_Q4_0",
}


def quantize(source: Path, target: Path, kind: str, *, threads: int = 0) -> None:
    """Write a GGUF file with requantised weights; an unfinished file is removed.

    Args:
        source: a GGUF file in f32, f16 or bf16.
        target: the new file, which is overwritten.
        kind: one of `FORMATS`. Matrices whose rows are not a multiple of 256 get a related kind, chosen by llama.cpp.
        threads: number of threads; 0 for all.

    Raises:
        UnsupportedError: there is no such kind, or llama.cpp is not installed.
        ModelNotFoundError, ModelError: the source cannot be read.
        FileError: the target cannot be written.
    """
    if kind not in FORMATS:
        raise UnsupportedError(f"weights are written as {', '.join(FORMATS)}, not '{kind}'.")
    check_file(source)
    if not target.parent.is_dir():
        raise FileError(f"cannot write {target}: the folder does not exist.")
    library = load_library()
    api = library.api
    params = api.llama_model_quantize_default_params()
    params.ftype = getattr(api, f"LLAMA_FTYPE_{FORMATS[kind]}")
    params.nthread = threads
    library.log.clear()
    try:
        failed = api.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    if failed:
        target.unlink(missing_ok=True)
        raise ModelError(f"{source} cannot be written as {kind}: {library.log.reason() or 'llama.cpp failed'}.")
