"""Checkpoints that are quantised already, read as they are: one file per format, and none of the formats' packages."""
