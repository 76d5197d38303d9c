"""GGUF files: their container, their blocks without requantisation, and models built from them."""
