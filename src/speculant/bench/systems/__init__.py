"""The systems compared by a benchmark: Speculant's methods, transformers, llama.cpp and other drafters."""
