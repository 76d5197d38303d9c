"""Quantised weights on CPUs: their layout, the formats they come from, and the modules that multiply by them."""
