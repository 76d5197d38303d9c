"""Drafters that run the whole target on part of its KV cache."""
