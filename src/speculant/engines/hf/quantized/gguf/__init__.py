"""GGUF files: their container, their blocks without rounding again, and models made of them."""
