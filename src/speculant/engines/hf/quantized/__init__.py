"""Quantised weights on CPUs: their layout, their source formats, and the modules that multiply by them."""
