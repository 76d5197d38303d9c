"""Benchmarks: replays of recorded outputs without a model, and timed runs against other systems."""
