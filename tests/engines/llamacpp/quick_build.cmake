# Read before each project of llama-cpp-python, of which llama.cpp is one: what the tests do not need is left out.

# The first one forces the cached option of this name, which a variable precedes: the library of llama.cpp's programs
# takes as long to compile as llama.cpp itself, and nothing in Python uses it.
set(LLAMA_BUILD_COMMON OFF)

# Loops over weights are in ggml. What surrounds them needs no optimisation; its files include the same headers.
if(CMAKE_CURRENT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR)
  cmake_language(DEFER CALL target_compile_options llama PRIVATE -O0)
  cmake_language(DEFER CALL target_precompile_headers llama PRIVATE
    ${CMAKE_SOURCE_DIR}/vendor/llama.cpp/src/models/models.h)
endif()
