"""Replays recorded outputs as the target, to measure what a drafter would have had accepted without a model."""
