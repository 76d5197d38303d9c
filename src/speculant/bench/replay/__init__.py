"""Replays recorded outputs as the target, to measure a drafter's acceptance without a model."""
