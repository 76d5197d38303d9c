"""Readers of quantised checkpoints: one file per format, without the formats' own packages."""
