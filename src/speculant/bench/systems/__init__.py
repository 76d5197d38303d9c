"""The systems that a benchmark compares: Speculant's methods, transformers, llama.cpp and other drafters."""
