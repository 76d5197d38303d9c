"""Recorded outputs played as the target: what a drafter would have had accepted, without a model."""
