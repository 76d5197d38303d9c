# Read before llama-cpp-python's own project. That one forces the cached option of this name, which a variable precedes:
# the library of llama.cpp's programs takes as long to compile as llama.cpp itself, and nothing in Python uses it.
set(LLAMA_BUILD_COMMON OFF)
