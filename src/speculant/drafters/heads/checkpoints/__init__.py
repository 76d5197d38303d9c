"""Checkpoints of heads: finding, loading and writing them in public layouts."""
