"""What is compared: our methods, transformers, llama.cpp and other drafters."""
