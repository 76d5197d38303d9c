"""llama.cpp as an engine, using llama-cpp-python's low-level API."""
