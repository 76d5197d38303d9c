"""Write the bundled model, or another of the Llama kind, as GGUF files that llama.cpp reads.

python models/stories/to_gguf.py -o stories --formats f32,bf16,q8_0,q4_k
speculant generate "Once upon a time" --model stories/q8_0.gguf
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from speculant.api.loading import load_model
from speculant.engines.llamacpp.gguf_file import write_gguf
from speculant.engines.llamacpp.quantize import FORMATS, quantize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a folder or a hub id; default: the bundled model")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder that gets FORMAT.gguf of each format")
    parser.add_argument("--formats", default="f32,bf16,q8_0,q4_k", help=f"of {', '.join(FORMATS)}")
    args = parser.parse_args()
    model, tokenizer = load_model(args.model, dtype="float32", device="cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        source = Path(folder) / "f32.gguf"
        write_gguf(model, source, tokenizer=tokenizer)
        for kind in args.formats.split(","):
            quantize(source, args.out / f"{kind}.gguf", kind)
            print(f"{args.out / kind}.gguf: {(args.out / f'{kind}.gguf').stat().st_size} bytes")


if __name__ == "__main__":
    main()
