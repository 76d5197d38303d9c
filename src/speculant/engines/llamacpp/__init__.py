"""llama.cpp as an engine, over llama-cpp-python's low-level API."""
